"""Supervised fine-tuning: maximum likelihood of completions with their stop token; prompts are only read."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.algorithms.step import RunLength, StepResult
from lockstep.batch import Batch
from lockstep.data.demonstrations import Demonstrations
from lockstep.learners.base import Learner, compute_logprobs, train
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.metrics import Mean, Metrics
from lockstep.types import Phase


@dataclass(frozen=True)
class SFTWorkers:
    """Models and data of a step: π, and the demonstrations."""

    policy: Learner
    demonstrations: Demonstrations
    phase: Phase


def sft_step(step: int, position: int, workers: SFTWorkers, run_length: RunLength, seed: int) -> StepResult:
    """Runs one optimizer step on the rows from `position` on."""
    count = run_length.count_rows(position)
    with workers.phase("data"):
        batch = workers.demonstrations.at(position, count, seed)
    with workers.phase("policy"):
        metrics = train(workers.policy, batch, CrossEntropyLoss())
    return StepResult(metrics.with_prefix("policy"), position + count, batch.tokens.numel())


def measure_held_out_loss(policy: Learner, batch: Batch) -> Metrics:
    """Cross-entropy per trainable token of held-out rows, nats, and its exponential; no gradients."""
    total = -compute_logprobs(policy, batch, "the policy").double()[batch.mask].sum()
    loss = Mean(total, batch.mask.sum())
    return Metrics(loss=loss, perplexity=Mean((total / batch.mask.sum()).exp()))
