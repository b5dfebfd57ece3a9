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
_TURNS = 2
"""Stretches of shared memory that are filled in turn."""


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
    """Carries buckets by shared memory, in turn: one is filled while the other is read. Nothing outlives it."""

    def __init__(self) -> None:
        self._files = [_SharedFile() for _ in range(_TURNS)]

    def fill(self, number: int, slots: tuple[Slot, ...], tensors: Sequence[Tensor]) -> Bucket:
        file = self._files[number % _TURNS]
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


class Inbox:
    """The receiver's side: takes tensors out of buckets. It keeps the sender's memory mapped from one to the next."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        self._mapped: dict[tuple[int, int], Tensor] = {}

    def join(self, meeting: Meeting) -> None:
        """Joins the process group by which bytes come where a bucket has no place."""
        self._group = join_group(meeting)

    def unpack(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of a bucket that was announced. The tensors may change once all have been taken."""
        flat = self._map(bucket.place) if bucket.place else self._receive(bucket.size)
        for slot in bucket.slots:
            yield slot.name, slot.of(flat)

    def _map(self, place: str) -> Tensor:
        """The bytes of a file, which is the same as before only if its number is: paths are used again."""
        with Path(place).open("r+b") as file:
            found = os.fstat(file.fileno())
            key = found.st_dev, found.st_ino
            if key not in self._mapped or self._mapped[key].numel() < found.st_size:
                if len(self._mapped) == _TURNS:
                    self._mapped.clear()
                self._mapped[key] = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
            return self._mapped[key]

    def _receive(self, size: int) -> Tensor:
        assert self._group is not None, "a bucket without a place comes by the group that was joined before"
        flat = torch.empty(size, dtype=torch.uint8)
        self._group.broadcast([flat], _FROM_SENDER).wait()
        return flat


def _fill(flat: Tensor, slots: Iterable[Slot], tensors: Iterable[Tensor]) -> None:
    for slot, tensor in zip(slots, tensors, strict=True):
        slot.of(flat).copy_(tensor)


def _end(slots: Iterable[Slot]) -> int:
    *_, last = slots
    return last.start + last.size


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
