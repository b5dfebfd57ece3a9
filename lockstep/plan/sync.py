"""A weight sync on paper: the memory of a GPU that carriers take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lockstep.algorithms.roles import Inference
from lockstep.cluster.placement import Placement, choose_route
from lockstep.plan.memory import Rank
from lockstep.plan.sizes import FP32
from lockstep.samplers.backend import find_backend
from lockstep.weight_sync.buckets import CAPACITY
from lockstep.weight_sync.carriers import BUFFERS, Route


@dataclass(frozen=True)
class SyncEstimate:
    """The estimate of a weight sync from the policy to its engines.

    Attributes:
        rank: One rank of the policy.
        item: Bytes of a number in the engines' type.
        route: How the weights travel.
        on_host: True if they are sent from the host's memory: offloaded ones, or the copy that one process sends.
    """

    rank: Rank
    item: int
    route: Route
    on_host: bool = False

    @classmethod
    def of(cls, rank: Rank, inference: Inference, placement: Placement) -> Self | None:
        """Estimates a weight sync; None where engines take no weights.

        Raises:
            InputError: Weights cannot come as the recipe says.
        """
        backend = find_backend(inference.sampler)
        if backend is None:
            return None
        near = placement.engines_on_one_machine
        route = choose_route(inference.sampler, placement, near)
        offloads, copies = rank.learner.cpu_offload, inference.one_step_ahead
        route = route.from_host(near) if offloads or copies else route
        on_host = offloads or (copies and rank.learner.parallel.ranks == 1)  # several ranks bring their parts to a GPU
        return cls(rank, backend.dtype(rank.learner).itemsize, route, on_host)

    @property
    def weights(self) -> int:
        """Bytes of the weights as they are sent."""
        return self.item * self.rank.sizes.policy

    @property
    def sender_buckets(self) -> int:
        """Bytes of the buckets that a rank fills alternately on its GPU, which it keeps for the next weight sync."""
        return 0 if self.on_host else BUFFERS * self._bucket

    @property
    def engine_buckets(self) -> int:
        """The same of an engine, where bytes come from another GPU."""
        return BUFFERS * self._bucket if self.route.backend == "nccl" else 0

    @property
    def passing(self) -> int:
        """Bytes of a GPU for a tensor on its way: its piece in fp32; cast and gathered; and as it arrives."""
        largest = self.rank.sizes.largest
        leaving = 0 if self.on_host else FP32 * largest // self._pieces + 2 * self.item * largest
        return leaving + (0 if self.route.is_between_gpus else self._bucket)

    @property
    def _bucket(self) -> int:
        return max(self.item * self.rank.sizes.largest, CAPACITY)

    @property
    def _pieces(self) -> int:
        """Number of ranks among which the weights are sharded."""
        return self.rank.shares * self.rank.learner.parallel.tp
