"""Buckets: weights are sent a few at a time, so that no side needs a second copy of the model.

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
class BucketSlot:
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
        slots: Its tensors.
        handles: CUDA IPC handles of the bytes' memory, by GPU name; empty for other carriers.
    """

    number: int
    size: int
    slots: tuple[BucketSlot, ...]
    handles: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """JSON, for engines that accept only plain values."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WeightBucket:
        """Parses the output of `json`."""
        fields = json.loads(text)
        slots = (
            BucketSlot(**{**slot, "shape": tuple(slot["shape"])}) for slot in fields.pop("slots")
        )
        return cls(**fields, slots=tuple(slots))


def pack_buckets(
    tensors: Iterable[tuple[str, Tensor, torch.dtype]],
) -> Iterator[tuple[tuple[BucketSlot, ...], list[Tensor]]]:
    """Groups tensors, with their sent types, into buckets: as many as fit, or one larger tensor."""
    slots = list[BucketSlot]()
    packed = list[Tensor]()
    for name, tensor, dtype in tensors:
        slot = BucketSlot(
            name, str(dtype).removeprefix("torch."), tuple(tensor.shape), count_aligned_bytes(slots)
        )
        if slots and slot.start + slot.size_bytes > CAPACITY:
            yield tuple(slots), packed
            slot = replace(slot, start=0)
            slots = []
            packed = []
        slots.append(slot)
        packed.append(tensor)
    if slots:
        yield tuple(slots), packed


def count_aligned_bytes(slots: Sequence[BucketSlot]) -> int:
    """Bytes up to the aligned end of the last slot, where another slot may start."""
    if slots:
        return -(-(slots[-1].start + slots[-1].size_bytes) // _ALIGNMENT) * _ALIGNMENT
    return 0
