"""The sender's side of a weight sync where the weights are in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from torch import Tensor

from lockstep.distributed.meeting import Meeting
from lockstep.weight_sync.transfer import Bucket, Carrier, GroupBroadcast, SharedMemory, join_group, pack


class LocalSender:
    """Implements `outgoing.Sender` for weights of this process."""

    def __init__(self) -> None:
        self._shared_memory = SharedMemory()
        self._carrier: Carrier = self._shared_memory
        self.meeting: Meeting | None = None

    def join(self, meeting: Meeting | None) -> None:
        self.meeting = meeting
        self._carrier = self._shared_memory if meeting is None else GroupBroadcast(join_group(meeting))

    def buckets(self, stream: Iterable[tuple[str, Tensor]]) -> Generator[Bucket]:
        for number, (slots, tensors) in enumerate(pack(stream)):
            yield self._carrier.fill(number, slots, tensors)

    def ship(self, bucket: Bucket) -> None:
        self._carrier.ship(bucket)
