"""Buckets: weights are sent to other processes a few at a time, so that no side holds a second copy of the model.

A bucket is a range of bytes, and a list of the tensors in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

CAPACITY = 1 << 25
"""Bytes of a bucket; a larger tensor gets a bucket of its own size."""
_ALIGNMENT = 64


@dataclass(frozen=True)
class Slot:
    """A tensor in a bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def of(self, flat: Tensor) -> Tensor:
        """The tensor, in the memory of the bucket's bytes."""
        return flat[self.start : self.start + self.size].view(self.torch_dtype).view(self.shape)


@dataclass(frozen=True)
class Bucket:
    """Some of the weights.

    Attributes:
        number: Counted from 0 in a weight sync.
        size: Bytes.
        slots: Places of its tensors.
        handles: CUDA IPC handles of the memory that holds the bytes, by the GPU's name; empty for other carriers.
        written: If several processes fill the bucket, the bytes of each slot that this one wrote; otherwise empty.
    """

    number: int
    size: int
    slots: tuple[Slot, ...]
    handles: Mapping[str, str] = field(default_factory=dict)
    written: tuple[int, ...] = ()

    def json(self) -> str:
        """JSON, for engines that only take plain values."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Bucket:
        """Reads what `json` wrote."""
        fields = json.loads(text)
        slots = (Slot(**{**slot, "shape": tuple(slot["shape"])}) for slot in fields.pop("slots"))
        written = tuple(fields.pop("written"))
        return cls(**fields, slots=tuple(slots), written=written)


@dataclass(frozen=True, eq=False)
class WeightPart:
    """A tensor of the weights, and the part of it that this process sends.

    Attributes:
        name: Its name.
        dtype: The type in which it is sent.
        shape: Its shape, over all processes.
        offset: Start of this process's part.
        numbers: The part, a box of the tensor, in any type; None if this process has none, or another one sends it.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    numbers: Tensor | None

    @property
    def size(self) -> int:
        """Bytes that this process sends."""
        return 0 if self.numbers is None else self.numbers.numel() * self.dtype.itemsize

    @classmethod
    def whole(cls, name: str, tensor: Tensor, dtype: torch.dtype) -> WeightPart:
        """A tensor that this process has as a whole."""
        return cls(name, dtype, tuple(tensor.shape), (0,) * tensor.ndim, tensor.detach())

    def of(self, whole: Tensor) -> Tensor:
        """The view of the whole tensor that this part fills."""
        assert self.numbers is not None, "a part without numbers has no place"
        for dim, (start, length) in enumerate(zip(self.offset, self.numbers.shape, strict=True)):
            whole = whole.narrow(dim, start, length)
        return whole


def pack(parts: Iterable[WeightPart]) -> Iterator[tuple[tuple[Slot, ...], list[WeightPart]]]:
    """Groups tensors into buckets, in their order: as many as fit, or a single larger one."""
    slots, packed = list[Slot](), list[WeightPart]()
    for part in parts:
        slot = Slot(part.name, str(part.dtype).removeprefix("torch."), part.shape, end_of(slots))
        if slots and slot.start + slot.size > CAPACITY:
            yield tuple(slots), packed
            slot = Slot(slot.name, slot.dtype, slot.shape, 0)
            slots, packed = [], []
        slots.append(slot)
        packed.append(part)
    if slots:
        yield tuple(slots), packed


def end_of(slots: Sequence[Slot]) -> int:
    """Bytes up to the aligned end of the last slot, where another one may start."""
    return -(-(slots[-1].start + slots[-1].size) // _ALIGNMENT) * _ALIGNMENT if slots else 0
