"""Buckets: weights on their way to another process, some at a time, so that no side holds a second copy of the model.

A bucket is a stretch of bytes, and a list of what lies where in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

CAPACITY = 1 << 25
"""Bytes of a bucket; a tensor that is larger has one for itself."""
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
        handles: Of memory of GPUs that holds the bytes, by the GPU's name; empty: they come another way.
    """

    number: int
    size: int
    slots: tuple[Slot, ...]
    handles: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> str:
        """JSON, for engines that take nothing but plain values."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Bucket:
        """Reads what `json` wrote."""
        fields = json.loads(text)
        slots = (Slot(**{**slot, "shape": tuple(slot["shape"])}) for slot in fields.pop("slots"))
        return cls(**fields, slots=tuple(slots))


@dataclass(frozen=True, eq=False)
class WeightPart:
    """A tensor of the weights, and what this process has of it.

    Attributes:
        name: Its name.
        dtype: The type in which it is sent.
        shape: Its shape, over all processes.
        offset: Start of what this process has.
        numbers: A box of the tensor, in any type; None: this process has nothing of it, or another one writes the same.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    numbers: Tensor | None

    @classmethod
    def whole(cls, name: str, tensor: Tensor, dtype: torch.dtype) -> WeightPart:
        """A tensor that this process has."""
        return cls(name, dtype, tuple(tensor.shape), (0,) * tensor.ndim, tensor.detach())

    def of(self, whole: Tensor) -> Tensor:
        """The place of the numbers in the tensor."""
        assert self.numbers is not None, "a part without numbers has no place"
        for dim, (start, length) in enumerate(zip(self.offset, self.numbers.shape, strict=True)):
            whole = whole.narrow(dim, start, length)
        return whole


def pack(parts: Iterable[WeightPart]) -> Iterator[tuple[tuple[Slot, ...], list[WeightPart]]]:
    """Groups tensors in their order: as many as fit a bucket, or one that is larger."""
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
    """Bytes up to the end of the last slot, so that another one may follow."""
    return -(-(slots[-1].start + slots[-1].size) // _ALIGNMENT) * _ALIGNMENT if slots else 0
