"""Transfer of weights to another process, in buckets: no side ever holds a second copy of the whole model.

A bucket is a stretch of bytes that both sides see, and a list of what lies where in it. On one machine the bytes lie in
shared memory; where there is none they are broadcast in a process group, by gloo.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.distributed.meeting import Meeting

_CAPACITY = 1 << 26
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
        return self.numel * self.torch_dtype.itemsize

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

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
        place: The file that holds the bytes; empty: they come by the process group.
        size: Bytes.
        slots: Places of its tensors.
    """

    number: int
    place: str
    size: int
    slots: tuple[Slot, ...]

    def json(self) -> str:
        """JSON, for engines that take nothing but plain values."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Bucket:
        """Reads what `json` wrote."""
        fields = json.loads(text)
        slots = (Slot(**{**slot, "shape": tuple(slot["shape"])}) for slot in fields.pop("slots"))
        return cls(**fields, slots=tuple(slots))


def join_group(own: Meeting) -> dist.ProcessGroup:
    """Joins a process group for weights alone, apart from torch's default one, which an engine may use itself.

    Returns when all are there. The sender has rank 0.
    """
    group = dist.ProcessGroupGloo(own.store(), own.rank, own.size, own.timeout)
    return cast("dist.ProcessGroup", group)  # it has the same methods


class Carrier(Protocol):
    """Moves the bytes of buckets from the process that has the weights."""

    def fill(self, number: int, slots: tuple[Slot, ...], tensors: Sequence[Tensor]) -> Bucket:
        """Fills the next bucket. Its bytes stay until the one after the next is filled."""
        ...

    def ship(self, bucket: Bucket) -> None:
        """Sends the bytes to the receivers, which know of the bucket; returns when they have them."""
        ...


class SharedMemory:
    """Carries buckets by shared memory, two in turn: one is filled while the other is read. Nothing outlives it."""

    def __init__(self) -> None:
        self._files = (_SharedFile(), _SharedFile())

    def fill(self, number: int, slots: tuple[Slot, ...], tensors: Sequence[Tensor]) -> Bucket:
        file = self._files[number % 2]
        _fill(file.bytes(_end(slots)), slots, tensors)
        return Bucket(number, file.path, _end(slots), slots)

    def ship(self, bucket: Bucket) -> None:
        """Does nothing: receivers see the written memory."""


class _SharedFile:
    """Memory that other processes open by a path; it goes when the last of them has."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("lockstep-weights")
            self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._descriptor, self.path = tempfile.mkstemp(prefix="lockstep-weights-")
            weakref.finalize(self, os.unlink, self.path)
        weakref.finalize(self, os.close, self._descriptor)
        self._flat = torch.empty(0, dtype=torch.uint8)

    def bytes(self, size: int) -> Tensor:
        if size > self._flat.numel():
            os.ftruncate(self._descriptor, max(size, _CAPACITY))
            self._flat = torch.frombuffer(mmap.mmap(self._descriptor, 0), dtype=torch.uint8)
        return self._flat


class GroupBroadcast:
    """Carries buckets by broadcasts in a process group, from rank 0."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._flat = torch.empty(0)

    def fill(self, number: int, slots: tuple[Slot, ...], tensors: Sequence[Tensor]) -> Bucket:
        self._flat = torch.empty(_end(slots), dtype=torch.uint8)
        _fill(self._flat, slots, tensors)
        return Bucket(number, "", self._flat.numel(), slots)

    def ship(self, bucket: Bucket) -> None:
        self._group.broadcast([self._flat], _FROM_SENDER).wait()


_FROM_SENDER = dist.BroadcastOptions()
_FROM_SENDER.rootRank = 0


def pack(stream: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[tuple[Slot, ...], list[Tensor]]]:
    """Groups tensors in their order: as many as fit a bucket, or one that is larger."""
    slots: list[Slot] = []
    tensors: list[Tensor] = []
    for name, tensor in stream:
        start = _align(slots[-1].start + slots[-1].size) if slots else 0
        if slots and start + tensor.nbytes > _CAPACITY:
            yield tuple(slots), tensors
            slots, tensors, start = [], [], 0
        slots.append(Slot(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), start))
        tensors.append(tensor.detach())
    if slots:
        yield tuple(slots), tensors


def unpack(bucket: Bucket, group: dist.ProcessGroup | None) -> Iterator[tuple[str, Tensor]]:
    """The receiver's side: names and tensors of a bucket. The tensors may change once all have been taken.

    Args:
        bucket: The bucket that the sender announced.
        group: The process group, where bytes come by it.
    """
    if bucket.place:
        with Path(bucket.place).open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), bucket.size)
            flat = torch.frombuffer(mapped, dtype=torch.uint8)
    else:
        assert group is not None, "a bucket without a place comes by the group that was joined before"
        flat = torch.empty(bucket.size, dtype=torch.uint8)
        group.broadcast([flat], _FROM_SENDER).wait()
    for slot in bucket.slots:
        yield slot.name, slot.of(flat)


def _fill(flat: Tensor, slots: Iterable[Slot], tensors: Iterable[Tensor]) -> None:
    for slot, tensor in zip(slots, tensors, strict=True):
        slot.of(flat).copy_(tensor)


def _end(slots: Iterable[Slot]) -> int:
    *_, last = slots
    return last.start + last.size


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
