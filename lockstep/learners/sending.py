"""Methods by which a driver makes all ranks send their weights together, bucket by bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

import torch
from torch import Tensor

from lockstep.distributed.ranks import RankMesh
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import TransferRoute
from lockstep.weight_sync.outgoing import OutgoingWeights, SentFingerprint
from lockstep.weight_sync.sender import LocalSender, gather_buckets


@dataclass(frozen=True)
class FilledBucket:
    """A bucket that a rank has filled, fully or in part.

    Attributes:
        bucket: The bucket; None after the last.
        sent: Fingerprints of what the rank sent since the previous bucket, by weight name.
    """

    bucket: WeightBucket | None
    sent: dict[str, SentFingerprint]


class SendsWeights(ABC):
    """A rank that can send its weights, or its part of them."""

    _leaving: Generator[FilledBucket] | None = None
    _ranks: RankMesh

    @abstractmethod
    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yields weights as in the protocol; all ranks iterate together, and each gets all.

        Args:
            dtype: Floating-point numbers are cast to it before gathering; None: no cast.
        """

    def take_part_in_weights(self, dtype: torch.dtype | None = None) -> None:
        """Iterates `weights`, so that the first rank can gather them."""
        for _ in self.weights(dtype):
            pass

    def join_receivers(self, route: TransferRoute) -> None:
        """See `WeightSender.open_route`; only the first rank joins a process group, since only it
        sends.
        """
        self._local_sender.open_route(
            route, opens=self._ranks.rank_number == 0 or route.meeting is None
        )

    def begin_sending(self, dtype: torch.dtype, columns: bool) -> None:
        """Begins a weight sync of all ranks."""
        self._leaving = self._fill_buckets(dtype, columns)

    def fill_bucket(self) -> FilledBucket:
        """Fills the next bucket, or takes part in gathering it."""
        assert self._leaving is not None, "buckets are filled between begin_sending and end_sending"
        return next(self._leaving, FilledBucket(None, {}))

    def ship_bucket(self, bucket: WeightBucket) -> None:
        """See `WeightSender.ship_bucket`."""
        self._local_sender.ship_bucket(bucket)

    def end_sending(self) -> None:
        """Aborts a weight sync that failed between buckets; all ranks are at the same bucket."""
        self._leaving = None

    def _fill_buckets(self, dtype: torch.dtype, columns: bool) -> Generator[FilledBucket]:
        outgoing = OutgoingWeights(
            lambda: self.weights(dtype), dtype
        )  # cast before they are gathered
        for bucket in self._gather_buckets(outgoing, columns):
            yield FilledBucket(bucket, outgoing.take_new_fingerprints())
        yield FilledBucket(None, outgoing.take_new_fingerprints())

    def _gather_buckets(self, outgoing: OutgoingWeights, columns: bool) -> Generator[WeightBucket]:
        """Gathers weights in buckets.

        Every rank sends them by CUDA IPC; only the first rank by other carriers.
        """
        route = self._local_sender.route
        assert route is not None, "a sender joins a route before it sends"
        match route.transfer:
            case "cuda_ipc":
                sends = True
            case "shared_memory" | "process_group":
                sends = self._ranks.rank_number == 0
            case _:
                assert_never(route.transfer)
        if sends:
            return self._local_sender.fill_buckets(outgoing, columns)
        return gather_buckets(outgoing)

    @cached_property
    def _local_sender(self) -> LocalSender:
        return LocalSender()
