"""One rank of a learner in a process of its own, and the memory that a step of it takes at its
peak.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.harness import MemoryGrowth
from lockstep.cluster.learner_group import RankSpec
from lockstep.cluster.placement import ProcessPlace
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.worker_proxy import wait_for_calls
from lockstep.cluster.workers import HERE, LOOPBACK
from lockstep.config import LearnerSection, Optimizer
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.distributed.meeting import RendezvousHost
from lockstep.distributed.ranks import ALONE, RankMesh
from lockstep.learners.base import train
from lockstep.losses.base import Outputs
from lockstep.losses.cross_entropy import CrossEntropyLoss

_MMAP_THRESHOLD = -3
"""An option of the C library."""

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
}


def model_folder(folder: Path, fields: dict[str, Any]) -> Path:
    """Writes a model with random weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        **{"model_type": "llama", "max_position_embeddings": 4096, **fields}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class SquaredValues:
    """A loss of values."""

    denominator = "tokens"

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, Metrics]:
        assert outputs.value is not None
        return (outputs.value**2).sum(), Metrics()


@dataclass(frozen=True)
class MeasuredRank:
    """Builds a learner's rank after a tiny one, so that code, threads and sockets are there already
    and do not count.

    Attributes:
        rank: The rank to measure.
        tiny: Folder of a tiny model.
    """

    rank: RankSpec
    tiny: str

    def build(self) -> Steps:
        # what is freed is given back at once; a heap keeps holes
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 2**18)
        spec = self.rank.learner
        parallel = self.rank.learner.section.parallel
        tiny = replace(spec, model=self.tiny)
        ranks = ALONE
        if parallel.ranks == 1:
            first = tiny.build()
        else:
            first = replace(self.rank, learner=tiny).build()
            ranks = RankMesh.from_sizes("cpu", parallel.model_dump())
        steps = Steps(first, spec.head, [64, 64])
        steps.step()
        growth = MemoryGrowth()
        return Steps(spec.build(ranks), spec.head, [], growth)


class Steps:
    """Runs steps of a learner."""

    def __init__(
        self, learner: Any, head: str, lengths: list[int], growth: MemoryGrowth | None = None
    ) -> None:
        self._learner = learner
        self._lengths = lengths
        self._growth = growth
        self._loss: Any = CrossEntropyLoss() if head == "logits" else SquaredValues()

    def step(self) -> None:
        total = sum(self._lengths)
        tokens = torch.arange(total) % 127  # no two sequences begin alike
        mask = torch.ones(total, dtype=torch.bool)
        train(self._learner, Batch(tokens, torch.tensor(self._lengths), {"mask": mask}), self._loss)

    def peak(self, lengths: list[int], steps: int) -> float:
        """Bytes at the peak of some steps on sequences of these lengths, beyond those before the
        model was built.
        """
        self._lengths = lengths
        for _ in range(steps):
            self.step()
        assert self._growth is not None, "the tiny learner is not measured"
        return self._growth.peak()


def measured(
    folder: Path, tiny: Path, section: LearnerSection, head: Any, lengths: list[int], steps: int = 2
) -> float:
    """The peak in bytes of the fullest rank; each data-parallel rank has sequences of these
    lengths.
    """
    spec = LearnerSpec(str(folder), head, section, Optimizer(lr=1e-5), 0)
    count = section.parallel.ranks
    host = RendezvousHost(LOOPBACK, count, 600.0)
    place = ProcessPlace(0, (0,), 0, on_gpu=False)
    ranks = [
        HERE.start_worker(
            MeasuredRank(RankSpec(spec, host.meeting.for_rank(rank)), str(tiny)).build,
            f"rank {rank}",
            600.0,
            place,
            threads=1,
        )
        for rank in range(count)
    ]
    try:
        wait_for_calls([rank.pending for rank in ranks])
        return max(wait_for_calls([rank.submit("peak", lengths, steps) for rank in ranks]))
    finally:
        for rank in ranks:
            rank.close()
