"""A learner of several ranks, each a process with a part of the model and a share of the rows.

Ranks all-reduce gradients and counts among themselves, so that any number of them gives the result
of one process. This is the driver's side: it decides which rows each rank reads in which pass,
calls all ranks at the same time, and uses one result of ranks that compute the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedConfig

from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.transport import WorkerFactory
from lockstep.cluster.worker_proxy import PendingCall, WorkerDied, WorkerProxy, wait_for_calls
from lockstep.cluster.workers import HERE, WorkerPool
from lockstep.config import LearnerSection
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics, merge_metrics
from lockstep.distributed.meeting import RendezvousAddress, RendezvousHost
from lockstep.distributed.ranks import RankMesh
from lockstep.learners import backend
from lockstep.learners.packing import deal_in_order, deal_to_ranks, find_families
from lockstep.learners.rank import RankLearner, restore_order
from lockstep.losses.base import Loss, require_inputs
from lockstep.models.device import resolve_device
from lockstep.models.folder import build_skeleton, carries_state, read_config
from lockstep.models.heads import scores_tokens
from lockstep.models.lora import list_targets, require_peft
from lockstep.models.open_kernels import settle_sharing
from lockstep.models.parallelize import require_divisible
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import SharedFiles, TransferRoute
from lockstep.weight_sync.outgoing import OutgoingWeights

_RANKS_WAIT_LONGER_S = 30.0
"""Additional seconds for collectives' timeout.

The driver's error, which names the verb that hangs, comes first; theirs names only a socket.
"""


@dataclass(frozen=True)
class RankSpec:
    """One rank of a learner.

    Attributes:
        learner: Spec of the learner, the same on every rank.
        meeting: Rendezvous of the ranks.
    """

    learner: LearnerSpec
    meeting: RendezvousAddress

    def build(self) -> RankLearner:
        """Joins the other ranks; returns when all have joined."""
        device = resolve_device(self.learner.section.device).type
        parallel = self.learner.section.parallel
        if device == "cuda":
            torch.cuda.set_device(self.meeting.rank % torch.cuda.device_count())
        self.meeting.choose_interface()
        dist.init_process_group(
            "cuda:nccl,cpu:gloo" if device == "cuda" else "gloo",  # gloo for offloaded tensors
            store=self.meeting.open_store(),
            rank=self.meeting.rank,
            world_size=self.meeting.size,
            timeout=self.meeting.collective_timeout,
        )
        return self.learner.build(RankMesh.from_sizes(device, parallel.model_dump()))


def require_computable(config: PreTrainedConfig, section: LearnerSection) -> None:
    """Raises ValueError if the backend cannot compute the model, or the layout cannot shard it."""
    require_divisible(config, section.parallel.tp, section.layout_key)
    if section.parallel.cp > 1 and carries_state(config):
        raise InputError(
            f"{section.layout_key}.cp is {section.parallel.cp}, but {config.model_type} layers "
            "carry state along each sequence, which cp would split; use dp"
        )
    backend.find_backend(section).require_model(config, section)
    if section.lora is not None:
        require_peft()
        list_targets(build_skeleton(config, "learner.lora"), section.lora)


BeginHook = Callable[["MeshLearner"], None]
"""`DeviceTurns.begin_work`, which frees memory for a learner before it works."""


def launch_learner(
    spec: LearnerSpec, timeout_s: float, workers: WorkerPool = HERE, begin: BeginHook | None = None
) -> MeshLearner:
    """Starts the ranks of `spec.section.parallel` and waits until all have built their model.

    Args:
        spec: Spec of the learner.
        timeout_s: Timeout of a verb.
        workers: Starts the ranks.
        begin: Called before the learner works, if it shares its devices; None: no sharing.

    Raises:
        ValueError: If the layout cannot shard the model, or there are fewer GPUs than ranks.
    """
    config = read_config(spec.model, headless=not scores_tokens(spec.head))
    require_computable(config, spec.section)
    device = resolve_device(spec.section.device)
    spec = replace(spec, section=settle_sharing(config, spec.section, device))

    def make_factory(meeting: RendezvousAddress) -> WorkerFactory:
        return RankSpec(spec, meeting).build

    ranks, host = start_ranks(
        spec.section, f"{spec.head} learner", make_factory, timeout_s, workers
    )
    learner = MeshLearner(ranks, spec.section, host, begin, workers.one_machine)
    learner.wait_until_ready()
    return learner


def start_ranks(
    section: LearnerSection,
    name: str,
    make: Callable[[RendezvousAddress], WorkerFactory],
    timeout_s: float,
    workers: WorkerPool,
) -> tuple[list[WorkerProxy], RendezvousHost]:
    """Starts the ranks of a learner, in order.

    Keep the returned host alive: its store connects the ranks.

    Args:
        make: Makes a rank's factory from its meeting.
        timeout_s: Timeout of a verb.
    """
    count = section.parallel.ranks
    places = workers.place_ranks(count, section)
    host = RendezvousHost(workers.address, count, timeout_s + _RANKS_WAIT_LONGER_S)
    ranks: list[WorkerProxy] = []
    for rank, place in enumerate(places):
        ranks.append(
            workers.start_worker(
                make(host.meeting.for_rank(rank)), f"{name} rank {rank}", timeout_s, place, of=count
            )
        )
    return ranks, host


class RankSender(SharedFiles):
    """Implements `outgoing.WeightSender` for ranks; all ranks fill each bucket together.

    Args:
        learner: The ranks.
    """

    def __init__(self, learner: MeshLearner) -> None:
        self._learner = learner
        self.route: TransferRoute | None = None
        self.on_host = learner.section.cpu_offload
        self.one_machine = learner.one_machine

    def stream_weights(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        yield from self._learner.weights(dtype)

    def open_route(self, route: TransferRoute) -> None:
        if route == self.route:
            return
        self._learner.call_all("join_receivers", route)
        self.route = route

    def fill_buckets(self, stream: OutgoingWeights, columns: bool) -> Generator[WeightBucket]:
        self._learner.call_all("begin_sending", stream.dtype, columns)
        try:
            while True:
                shipments = self._learner.call_all("fill_bucket")
                for shipment in shipments:
                    stream.note_fingerprints(shipment.sent)
                found = [shipment.bucket for shipment in shipments if shipment.bucket is not None]
                if not found:
                    return
                handles: dict[str, str] = {}
                for bucket in found:
                    handles |= bucket.handles
                yield replace(found[0], handles=handles)
        except GeneratorExit:
            self._learner.call_all("end_sending")
            raise

    def free_buckets(self) -> None:
        self._learner.empty_cache()

    def ship_bucket(self, bucket: WeightBucket) -> None:
        if self.route is not None and self.route.meeting is not None:
            self._learner.ranks[0].call("ship_bucket", bucket)


class MeshLearner:
    """Implements `learners.base.Learner` over ranks.

    Args:
        ranks: Proxies of learners that share a process group, in the order of
            `RankMesh.rank_number`.
        section: The learner's section, with the layout of the ranks.
        host: Host of the store that connects the ranks; lives as long as they do.
        begin: See `launch_learner`.
        one_machine: True if the ranks share memory with this process.
    """

    def __init__(
        self,
        ranks: Sequence[WorkerProxy],
        section: LearnerSection,
        host: RendezvousHost,
        begin: BeginHook | None = None,
        one_machine: bool = True,
    ) -> None:
        self.ranks = ranks
        self.section = section
        self.host = host
        self.one_machine = one_machine
        self.sender = RankSender(self)
        self._make_room = begin
        self._has_left = False

    def wait_until_ready(self) -> None:
        """Waits until every rank has built its model."""
        self.wait_for_ranks([rank.pending for rank in self.ranks])

    def logprobs(self, batch: Batch) -> Tensor:
        order, parts = self._call_on_shares("logprobs", batch)
        return restore_order(torch.cat(parts), order, batch.lengths)

    def topk(self, batch: Batch, k: int) -> tuple[Tensor, Tensor]:
        return self._score_columns("topk", batch, k)

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._score_columns("values", batch)

    def _score_columns(self, verb: str, batch: Batch, *args: Any) -> tuple[Tensor, Tensor]:
        order, parts = self._call_on_shares(verb, batch, *args)
        firsts, seconds = zip(*parts, strict=True)
        return (
            restore_order(torch.cat(firsts), order, batch.lengths),
            restore_order(torch.cat(seconds), order, batch.lengths),
        )

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        require_inputs(batch, loss)
        order_B, metrics = self._call_on_shares("forward_backward", batch, loss)
        self._trained = order_B, batch.lengths
        return merge_metrics(metrics)

    def last_logprobs(self) -> Tensor:
        parts = self.call_all("last_logprobs")[self._ranks_with_results]
        return restore_order(torch.cat(parts), *self._trained)

    def optim_step(self, lr: float | None = None) -> Metrics:
        """Steps every rank; all return the same metrics: gradients are summed before the norm."""
        self._begin_work()
        return self.call_all("optim_step", lr)[0]

    def reset_optimizer(self) -> None:
        self._begin_work()
        self.call_all("reset_optimizer")

    def count_updates(self) -> int:
        return self.ranks[0].call("count_updates")

    def plan_updates(self, updates: int) -> None:
        self.call_all("plan_updates", updates)

    def offload(self, keep_weights: bool = False) -> None:
        """See `RankLearner.offload`; skipped if the learner has not worked since the last."""
        assert not keep_weights, "no sampler can share weights with ranks"
        if not self._has_left:
            self.call_all("offload")
        self._has_left = True

    def empty_cache(self) -> None:
        self.call_all("empty_cache")

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Streams the weights from the first rank; the others take part in gathering them.

        Args:
            dtype: See `SendsWeights.weights`.
        """
        others = [rank.submit("take_part_in_weights", dtype) for rank in self.ranks[1:]]
        try:
            yield from self.ranks[0].stream("weights", dtype)
        except WorkerDied:  # the cause; errors of the other ranks would only hide it
            while others:
                others.pop().end_worker()
            self.close()
            raise
        finally:
            self.wait_for_ranks(others)

    def require_shared(self, folder: Path) -> None:
        """Raises InputError if a rank's machine lacks the run's folder, where it writes."""
        with tempfile.NamedTemporaryFile(prefix=".seen-by-ranks-", dir=folder) as file:
            found = self.call_all("has_file", Path(file.name).absolute())
        missing = [rank.name for rank, has in zip(self.ranks, found, strict=True) if not has]
        if missing:
            raise InputError(
                f"run.folder is {folder.absolute()}, where ranks write checkpoints, but the "
                f"machine of {missing[0]} does not have it; mount it at the same path on all "
                "machines, or set run.folder to a shared folder"
            )

    def save(self, folder: Path) -> None:
        self._begin_work()
        self.call_all("save", folder.absolute())  # a rank's working directory may differ

    def poll_save(self, wait: bool) -> bool:
        return all(self.call_all("poll_save", wait))

    def load(self, folder: Path) -> None:
        self._begin_work()
        self.call_all("load", folder.absolute())

    def close(self) -> None:
        """Ends all ranks."""
        for rank in self.ranks:
            rank.close()

    def _begin_work(self) -> None:
        """Starts a call that moves weights or moments back to the devices."""
        self._has_left = False
        if self._make_room is not None:
            self._make_room(self)

    def call_all(self, verb: str, *args: Any) -> list[Any]:
        """Calls a method on all ranks at the same time. Returns results in rank order."""
        return self.wait_for_ranks(rank.submit(verb, *args) for rank in self.ranks)

    def _call_on_shares(self, verb: str, batch: Batch, *args: Any) -> tuple[Tensor, list[Any]]:
        """Runs a method on each data-parallel share of the rows, on all ranks of its model replica.

        Returns:
            Row indices in the order of the shares, int64 [B], and each share's result.
        """
        self._begin_work()
        budget = self.section.micro_batch_tokens
        ranks = self.section.parallel.row_shares
        if self.section.rows_per_pass is not None:
            shares = deal_in_order(len(batch.group_lengths), self.section.rows_per_pass, ranks)
        else:
            families = find_families(batch, budget, self.section.share_prefixes)
            shares = deal_to_ranks(families, budget, ranks)
        rows = [batch.rows_of([group for one in passes for group in one]) for passes in shares]
        each = self._ranks_with_results.step
        calls: list[PendingCall] = []
        for number, rank in enumerate(self.ranks):
            calls.append(
                rank.submit(
                    verb,
                    batch.select(rows[number // each]),
                    *args,
                    passes=_renumber_groups(shares[number // each]),
                )
            )
        results = self.wait_for_ranks(calls)[self._ranks_with_results]
        return torch.tensor([row for share in rows for row in share], dtype=torch.int64), results

    @property
    def _ranks_with_results(self) -> slice:
        """The first rank of the last pipeline stage of each share of the rows."""
        parallel = self.section.parallel
        ranks_of_stage = parallel.cp * parallel.tp
        return slice((parallel.pp - 1) * ranks_of_stage, None, parallel.pp * ranks_of_stage)

    def wait_for_ranks(self, calls: Iterable[PendingCall]) -> list[Any]:
        """Waits for all ranks; if one is lost, the process group is broken, so ends the rest."""
        try:
            return wait_for_calls(list(calls))
        except WorkerDied:
            self.close()
            raise


def _renumber_groups(passes: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same passes, with groups numbered in the order in which the passes read them."""
    ends = list(accumulate(map(len, passes), initial=0))
    return [list(range(start, end)) for start, end in pairwise(ends)]
