"""Buckets of weights, sent one by one, so that neither side needs a second copy of the model.

A bucket is a range of bytes, and a list of the tensors in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

CAPACITY = 1 << 25
"""Bytes of a bucket; a larger tensor gets a bucket of its size."""
_ALIGNMENT = 64


@dataclass(frozen=True)
class BucketPart:
    """A tensor in a bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def view_in(self, flat: Tensor) -> Tensor:
        """The tensor, in the memory of the bucket's bytes."""
        return (
            flat[self.start : self.start + self.size_bytes].view(self.torch_dtype).view(self.shape)
        )


@dataclass(frozen=True)
class WeightBucket:
    """Some of the weights, sent together.

    Attributes:
        number: Number of the bucket in a weight sync, from 0.
        size: Size in bytes.
        parts: Its tensors.
        handles: CUDA IPC handles of the bytes' memory, by GPU name; empty for other carriers.
    """

    number: int
    size: int
    parts: tuple[BucketPart, ...]
    handles: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """JSON, for engines that accept only plain values."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WeightBucket:
        """Parses the output of `to_json`."""
        fields = json.loads(text)
        parts = (
            BucketPart(**{**part, "shape": tuple(part["shape"])}) for part in fields.pop("parts")
        )
        return cls(**fields, parts=tuple(parts))


def pack_buckets(
    tensors: Iterable[tuple[str, Tensor, torch.dtype]],
) -> Iterator[tuple[tuple[BucketPart, ...], list[Tensor]]]:
    """Groups tensors, with their sent types, into buckets: as many as fit, or one larger tensor."""
    parts = list[BucketPart]()
    packed = list[Tensor]()
    for name, tensor, dtype in tensors:
        part = BucketPart(
            name, str(dtype).removeprefix("torch."), tuple(tensor.shape), count_aligned_bytes(parts)
        )
        if parts and part.start + part.size_bytes > CAPACITY:
            yield tuple(parts), packed
            part = replace(part, start=0)
            parts = []
            packed = []
        parts.append(part)
        packed.append(tensor)
    if parts:
        yield tuple(parts), packed


def count_aligned_bytes(parts: Sequence[BucketPart]) -> int:
    """Bytes up to the aligned end of the last part, where another part may start."""
    if parts:
        return -(-(parts[-1].start + parts[-1].size_bytes) // _ALIGNMENT) * _ALIGNMENT
    return 0
