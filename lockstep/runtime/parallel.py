"""Data parallelism: one learner made of several ranks, each a process with the whole model and a share of the rows.

The learner on each rank sums gradients and counts over the group inside `optim_step`, so that the result is that of one
process whatever the number of ranks; here is only the driver's side: splitting rows, asking all ranks at once, merging.
"""

from __future__ import annotations

import heapq
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.batch import Batch
from lockstep.learners.torch.learner import TorchLearner, resolve_device, restored
from lockstep.losses.base import Loss
from lockstep.metrics import Metrics, merged
from lockstep.runtime.remote import Pending, Remote, RemoteTimeout, WorkerDied, outcomes, spawned
from lockstep.runtime.workers import LearnerSpec


@dataclass(frozen=True)
class RankSpec:
    """One rank of a data-parallel learner.

    Attributes:
        learner: The same on every rank.
        rank: From 0.
        size: Number of ranks.
        store: File through which the ranks find each other.
        timeout_s: Of a collective.
    """

    learner: LearnerSpec
    rank: int
    size: int
    store: str
    timeout_s: float

    def build(self) -> TorchLearner:
        """Joins the other ranks; returns when all are there."""
        cuda = resolve_device(self.learner.section.device).type == "cuda"
        if cuda and self.size > torch.cuda.device_count():
            raise ValueError(
                f"learner.parallel.dp is {self.size}, but there are {torch.cuda.device_count()} GPUs; lower it"
            )
        if cuda:
            torch.cuda.set_device(self.rank)
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=self.timeout_s),
        )
        return self.learner.build(dist.group.WORLD)


def launch(spec: LearnerSpec, dp: int, timeout_s: float) -> DataParallelLearner:
    """Starts `dp` ranks as child processes and waits until all have built their model.

    Args:
        spec: What each rank builds.
        dp: Number of ranks.
        timeout_s: The longest that one verb may take.
    """
    folder = tempfile.mkdtemp(prefix="lockstep-ranks-")
    ranks = [
        spawned(
            RankSpec(spec, rank, dp, str(Path(folder) / "store"), timeout_s),
            f"{spec.head} learner rank {rank}",
            timeout_s,
            workers=dp,
        )
        for rank in range(dp)
    ]
    learner = DataParallelLearner(ranks)
    weakref.finalize(learner, shutil.rmtree, folder, ignore_errors=True)
    learner.ready()
    return learner


class DataParallelLearner:
    """Implements `learners.base.Learner` over ranks that each hold the whole model.

    Args:
        ranks: Proxies of learners that share a process group, rank 0 first.
    """

    def __init__(self, ranks: Sequence[Remote]) -> None:
        self.ranks = ranks

    def ready(self) -> None:
        """Waits until every rank has built its model."""
        self._outcomes([rank.pending for rank in self.ranks])

    def logprobs(self, batch: Batch) -> Tensor:
        order, parts = self._on_shares("logprobs", batch)
        return restored(torch.cat(parts), order, batch.lengths)

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        order, parts = self._on_shares("values", batch)
        value, final_value = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return restored(value, order, batch.lengths), restored(final_value, order, batch.lengths)

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        return merged(self._on_shares("forward_backward", batch, loss)[1])

    def optim_step(self) -> Metrics:
        """On every rank; all say the same, since gradients are summed before their norm is taken."""
        return self._on_all("optim_step")[0]

    def reset_optimizer(self) -> None:
        self._on_all("reset_optimizer")

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.ranks[0].stream("weights")

    def save(self, folder: Path) -> None:
        self.ranks[0].call("save", folder)

    def saved(self, wait: bool) -> bool:
        return self.ranks[0].call("saved", wait)

    def load(self, folder: Path) -> None:
        self._on_all("load", folder)

    def close(self) -> None:
        """Ends all ranks."""
        for rank in self.ranks:
            rank.close()

    def _on_all(self, verb: str, *args: Any) -> list[Any]:
        return self._outcomes(rank.submit(verb, *args) for rank in self.ranks)

    def _on_shares(self, verb: str, batch: Batch, *args: Any) -> tuple[Tensor, list[Any]]:
        """Runs a verb on each rank's rows; a rank without rows is not asked.

        Returns:
            The rows in the order of the ranks, int64 [B], and each rank's result.
        """
        shares = [batch.rows_of(groups) for groups in balanced(batch.group_lengths.tolist(), len(self.ranks)) if groups]
        calls = zip(self.ranks, shares, strict=False)
        results = self._outcomes(rank.submit(verb, batch.select(rows), *args) for rank, rows in calls)
        return torch.tensor([row for rows in shares for row in rows]), results

    def _outcomes(self, calls: Iterable[Pending]) -> list[Any]:
        """Waits for all; where a rank is gone its group is broken, and the others are ended too."""
        try:
            return outcomes(list(calls))
        except (WorkerDied, RemoteTimeout):
            self.close()
            raise


def balanced(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Splits sequences over ranks by tokens: longest first, each to the rank that has least.

    Args:
        lengths: Tokens per sequence.
        ranks: How many shares.

    Returns:
        Rows of each rank, ascending, every row once; empty shares come last.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0, rank) for rank in range(ranks)]
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        tokens, rank = heapq.heappop(load)
        shares[rank].append(row)
        heapq.heappush(load, (tokens + lengths[row], rank))
    return [sorted(share) for share in shares]
