"""The sender's side of a weight sync in a process that has weights, or a part of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from lockstep.weight_sync.buckets import Bucket, Slot, WeightPart, end_of, pack
from lockstep.weight_sync.carriers import Carrier, Route, SharedFiles, open_carrier
from lockstep.weight_sync.fingerprints import take
from lockstep.weight_sync.outgoing import Outgoing
from lockstep.weight_sync.sync import WeightSyncError


class OwnsFiles:
    """The shared memory that a sender fills, allocated when it is first used."""

    @cached_property
    def _files(self) -> SharedFiles:
        return SharedFiles()

    @property
    def places(self) -> tuple[str, ...]:
        return self._files.places


class LocalSender(OwnsFiles):
    """Sends weights of this process, as an `outgoing.Sender` sends those of others; it needs to know of no machine."""

    def __init__(self) -> None:
        self._carrier: Carrier | None = None
        self.route: Route | None = None

    def join(self, route: Route, opens: bool = True) -> None:
        """See `outgoing.Sender`; without `opens`, this process only takes part in gathering what another one sends."""
        self._carrier, self.route = open_carrier(route) if opens else None, route

    def buckets(self, stream: Outgoing, columns: bool) -> Generator[Bucket]:
        for number, (slots, parts) in enumerate(pack(stream.parts())):
            flat = self._memory(number, slots, parts)
            for slot, part in zip(slots, parts, strict=True):
                assert part.numbers is not None, "this process has all weights"
                tensor = slot.of(flat).copy_(part.numbers)
                stream.note_taken(slot.name, take(tensor), tensor, columns)
            yield self._opened.seal(number, slots)

    def buckets_together(
        self, stream: Outgoing, parts: Iterable[WeightPart], columns: bool, rank: int, ranks: int
    ) -> Generator[Bucket]:
        """Fills the same buckets as other processes, each with its own parts of the weights.

        When the next bucket is requested, all processes have filled the previous one; then each takes the fingerprints
        of some of its tensors. These are of the shared memory, so the caller has to `require_whole` buckets.

        Args:
            stream: Notes what was sent.
            parts: This process's parts of all tensors; every process lists the same tensors.
            columns: See `buckets`.
            rank: Rank of this process.
            ranks: Number of processes.
        """
        for number, (slots, own) in enumerate(pack(parts)):
            flat = self._memory(number, slots, own)
            written = list[int]()
            for slot, part in zip(slots, own, strict=True):
                if part.numbers is not None:
                    part.of(slot.of(flat)).copy_(part.numbers)
                written.append(part.size)
            yield replace(self._opened.seal(number, slots), written=tuple(written))
            for slot in deal(slots, rank, ranks):
                stream.note_taken(slot.name, take(slot.of(flat)), slot.of(flat), columns)

    def ship(self, bucket: Bucket) -> None:
        self._opened.ship(bucket)

    def finish(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _memory(self, number: int, slots: tuple[Slot, ...], parts: Sequence[WeightPart]) -> Tensor:
        device = next((part.numbers.device for part in parts if part.numbers is not None), torch.device("cpu"))
        return self._opened.memory(number, end_of(slots), device)

    @property
    def _opened(self) -> Carrier:
        assert self._carrier is not None, "a sender joins a route before it sends"
        return self._carrier


def gather_buckets(stream: Outgoing) -> Generator[Bucket]:
    """Takes part in gathering what another process sends, in the same buckets, and drops it."""
    for number, (slots, _) in enumerate(pack(stream.parts())):
        yield Bucket(number, end_of(slots), slots)


def require_whole(filled: Sequence[Bucket]) -> None:
    """Raises WeightSyncError if processes that fill a bucket together did not write each of its bytes once.

    Args:
        filled: The bucket as each process filled it, by rank.
    """
    if not any(bucket.written for bucket in filled):
        return
    for place, slot in enumerate(filled[0].slots):
        each = [bucket.written[place] for bucket in filled]
        if sum(each) != slot.size:
            ranks = ", ".join(f"rank {rank} wrote {size:,}" for rank, size in enumerate(each))
            raise WeightSyncError(
                f"{slot.name} has {slot.size:,} bytes to send, and the learner's ranks wrote {sum(each):,} ({ranks})"
            )


def deal(slots: Sequence[Slot], rank: int, ranks: int) -> list[Slot]:
    """The tensors of a bucket whose fingerprints a process takes: about an equal share of its bytes."""
    dealt, sizes = [list[Slot]() for _ in range(ranks)], [0] * ranks
    for slot in sorted(slots, key=lambda slot: -slot.size):
        least = sizes.index(min(sizes))
        dealt[least].append(slot)
        sizes[least] += slot.size
    return dealt[rank]
