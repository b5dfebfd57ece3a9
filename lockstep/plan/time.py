"""Estimated step time by phase, from a device's rates, measured by `gpu-check` or given.

All responses are assumed to have the maximum length, so this is too high if most end earlier.
Products count as 2 operations per weight and token forward and twice that backward, attention as 4
per number of a query and token that it sees. The measured share of a learner includes its updates.
Data loading, reward scoring and checkpoints are not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.algorithms.roles import Inference
from lockstep.core.errors import InputError
from lockstep.models.heads import scores_tokens
from lockstep.monitor.agreement import SHARE
from lockstep.plan.memory import ModelRank
from lockstep.plan.sizes import FP32, HALF, ModelSizes
from lockstep.system.records import read_record


@dataclass(frozen=True)
class DeviceRates:
    """Rates of one device in one dtype.

    Attributes:
        products: Operations per second of large products.
        learner: Fraction of `products` that a learner's passes with their update reach.
        memory: Bytes per second read from memory.
        layer_s: Overhead in seconds of a layer in a decoding pass, besides reading and multiplying.
        sync: Bytes per second of a weight sync.
        host: Bytes per second of copies from or to host memory.
    """

    products: float
    learner: float
    memory: float
    layer_s: float
    sync: float
    host: float

    @classmethod
    def from_file(cls, path: Path, dtype: str) -> DeviceRates:
        """Reads one dtype's rates from a file of `lockstep gpu-check`, or from similar JSON.

        Raises:
            InputError: The file is unreadable or lacks these rates.
        """
        found = read_record(
            path, _GpuCheck, "use a file written by `lockstep gpu-check`"
        ).rates.get(dtype)
        if found is None:
            raise InputError(f"{path} has no rates in {dtype}, the recipe's learner.dtype")
        return found


@dataclass(frozen=True)
class _GpuCheck:
    """The part of `gpu_check.json` that a plan reads: rates by dtype."""

    rates: dict[str, DeviceRates]


@dataclass(frozen=True)
class EngineCounts:
    """The inference engines that share a step's prompts.

    Attributes:
        count: Number of engines.
        width: Devices per engine.
        sequences: Maximum number of concurrent sequences per engine.
    """

    count: int
    width: int
    sequences: int


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by phase.

    Attributes:
        generate: Sampling; 0 without sampling.
        weight_sync: Weight sync.
        turns: Copies of learners to host memory and back.
        score: Passes without gradients.
        learn: Passes with gradients, and updates.
    """

    generate: float
    weight_sync: float
    turns: float
    score: float
    learn: float

    @property
    def total_seconds(self) -> float:
        """Seconds of all phases."""
        return self.generate + self.weight_sync + self.turns + self.score + self.learn

    @classmethod
    def from_ranks(
        cls,
        ranks: Mapping[str, ModelRank],
        inference: Inference | None,
        engines: EngineCounts,
        rates: DeviceRates,
        sent: int = 0,
        copied: int = 0,
    ) -> StepTime:
        """Estimates a step.

        Args:
            ranks: One rank of each learner, by name, the policy first: see `MemoryEstimate`.
            inference: The sampler; None if nothing samples.
            engines: Number of sampling engines, and devices of each.
            rates: Rates of one device.
            sent: Bytes of weights that an engine receives.
            copied: Bytes that a device copies to host memory and back.
        """
        policy = ranks["policy"]
        exact = inference is not None and inference.explain_inexact(policy.learner) is None
        speed = rates.products * rates.learner * policy.learner.parallel.ranks
        scoring = 0.0
        for rank in ranks.values():  # frozen models, critic values, the policy's old log π
            tokens = rank.load.scored * rank.load.group * rank.load.sequence
            again = exact and rank.trained and scores_tokens(rank.head)
            scoring += _count_forward(rank, tokens) / (SHARE if again else 1)
        score = scoring / speed
        learn = sum(map(count_learning, ranks.values())) / speed
        if inference is None or inference.sampling is None or not policy.load.generated:
            return cls(0.0, 0.0, 0.0, score, learn)
        generate = sampling_seconds(policy, engines, inference.sampling.max_tokens, rates)
        return cls(generate, sent / rates.sync, copied / rates.host, score, learn)


def _count_forward(rank: ModelRank, tokens: int) -> float:
    """Number of operations in a forward pass over the tokens of the longest sequences."""
    sizes = rank.sizes
    context = rank.load.sequence / 2
    head = _count_head(sizes) if scores_tokens(rank.head) else sizes.hidden
    computed = tokens * rank.load.share_computed(rank.learner)
    return computed * (
        2 * (sizes.layers * sizes.products + head) + 4 * sizes.layers * sizes.queries * context
    )


def _count_head(sizes: ModelSizes) -> int:
    return sizes.head or sizes.table


def count_learning(rank: ModelRank) -> float:
    """Operations of a step's training passes: forward, twice that backward, and recomputation."""
    if not rank.trained:
        return 0.0
    tokens = rank.load.updates * rank.load.rows * rank.load.group * rank.load.sequence
    return (4 if rank.learner.activation_checkpointing else 3) * _count_forward(rank, tokens)


def sampling_seconds(
    policy: ModelRank, engines: EngineCounts, new: int, rates: DeviceRates
) -> float:
    """Seconds of sampling: all prompts, then one-token passes for all rows of an engine.

    Args:
        policy: One of its ranks; `load.scored` is the number of responses.
        engines: Number of engines, and devices of each.
        new: Tokens of a response.
        rates: Rates of one device.
    """
    sizes = policy.sizes
    load = policy.load
    rows = -(-load.scored // engines.count)
    together = min(rows, engines.sequences)
    prompt = load.generated - new
    context = load.generated - new / 2
    weights = sizes.layers * sizes.products + _count_head(sizes)
    if policy.learner.is_half:
        item = HALF
    else:
        item = FP32
    read = item * (weights + together * context * sizes.cache)
    work = together * (2 * weights + 4 * sizes.layers * sizes.queries * context)
    one_pass = (
        max(read / rates.memory, work / rates.products) / engines.width
        + sizes.layers * rates.layer_s
    )
    prompts = 2 * rows * prompt * weights / (rates.products * rates.learner) / engines.width
    return -(-rows // together) * new * one_pass + prompts
