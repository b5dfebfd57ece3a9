"""Validation of self-rewarding on held-out prompts: answers, judges and chooses as in training, without learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from lockstep.algorithms.self_rewarding.meta import judge_pair_row
from lockstep.algorithms.self_rewarding.skill import Skill
from lockstep.algorithms.self_rewarding.step import (
    AskedPrompts,
    SelfRewardingSettings,
    SelfRewardingWorkers,
    answer_and_judge,
    with_reference,
)
from lockstep.batch import Batch
from lockstep.learners.base import compute_logprobs
from lockstep.losses.base import Outputs
from lockstep.losses.preference import interval_of_acc
from lockstep.metrics import Metrics, merge_metrics
from lockstep.rollouts.rollout import PromptStream
from lockstep.types import Prompt, skip_timing


@dataclass(frozen=True)
class HeldOut:
    """Held-out prompts with the interface of training prompts: by position, here in the order of their file.

    Attributes:
        prompts: All held-out prompts.
        stream: Has their right answers, for verifiers.
    """

    prompts: Sequence[Prompt]
    stream: PromptStream

    def at(self, position: int, count: int, seed: int) -> list[Prompt]:
        """The prompts `position` … `position + count − 1`, fewer at the end; in the same order for every seed."""
        return list(self.prompts[position : position + count])

    def answer(self, prompt: Prompt) -> str:
        """The right answer of a prompt; empty where the data has none."""
        return self.stream.answer(prompt)


@dataclass(frozen=True)
class _Pairs:
    """Held-out answers of one version of the weights, judged, and the pairs among them.

    Attributes:
        metrics: Metrics of answers, judges and pairs.
        batches: Pairs, with the reference policy's log-probabilities.
        table: Rows for the sample log.
    """

    iteration: int
    version: int
    metrics: Metrics
    batches: Sequence[Batch]
    table: list[dict[str, Any]]


class Twins:
    """Computes the metrics of a training step on held-out prompts, as `val/…`, and a table of the chosen pairs.

    Options, acting policy and reference policy are those of the newest step, whose iteration may have ended with it.
    Random numbers are the same each time, so answers of the same weights are too, and are cached: then only π's
    log-probabilities are new. An iteration of another algorithm has nothing to measure.

    Args:
        held_out: The prompts.
        workers: Those of training.
        settings: Those of training.
    """

    def __init__(self, held_out: HeldOut, workers: SelfRewardingWorkers, settings: SelfRewardingSettings) -> None:
        self._held_out, self._settings = held_out, settings
        self._workers = replace(
            workers, phase=skip_timing, collector=replace(workers.collector, prompts=held_out)
        )  # all of it is timed as validation
        self._pairs: _Pairs | None = None

    def __call__(self, step: int) -> tuple[Metrics, list[dict[str, Any]]]:
        """Computes metrics and table after a number of steps."""
        settings, newest = self._settings, max(step - 1, 0)
        iteration = newest // settings.steps_per_iteration
        if iteration == 0 and self._workers.first_iteration is not None:
            return Metrics(), []
        version = _acting_version(step, settings)
        pairs = self._pairs
        if pairs is None or (pairs.iteration, pairs.version) != (iteration, version):
            pairs = self._pairs = self._make_pairs(iteration, version)
        metrics, loss = pairs.metrics.with_prefix("val"), settings.loss(iteration)
        if pairs.batches:
            policy = self._workers.policy
            scored = ((batch, compute_logprobs(policy, batch, "the policy")) for batch in pairs.batches)
            learned = merge_metrics(loss(Outputs(logprob=logprob_N), batch)[1] for batch, logprob_N in scored)
            metrics += (learned + interval_of_acc(learned)).with_prefix("val")
        return metrics, pairs.table

    def _make_pairs(self, iteration: int, version: int) -> _Pairs:
        """Answers and judges all held-out prompts, in batches of a training step's size."""
        settings, size = self._settings, self._settings.options.global_batch_size
        workers = replace(self._workers, skill=Skill(_tell_no_one))  # as its comparisons of held-out answers show it
        metrics, batches = Metrics(), list[Batch]()
        answers, judgements = list[dict[str, Any]](), list[dict[str, Any]]()
        for position in range(0, len(self._held_out.prompts), size):
            count = min(size, len(self._held_out.prompts) - position)
            asked = AskedPrompts(position, count, iteration, version, key=0)
            found = answer_and_judge(asked, workers.collector, workers, settings)
            metrics += found.metrics
            batch = found.batch()
            batches += [with_reference(batch, workers)] if len(batch) else []
            answers += found.answers.sample_rows(count)
            judgements += [judge_pair_row(pair, workers.collector.decode) for pair in found.judgements]
        shown = settings.num_logged_samples
        table = [{"held_out": True, **row} for row in (*answers[:shown], *judgements[:shown])]
        told = Metrics({name.removeprefix("train/"): metric for name, metric in metrics.items()})
        return _Pairs(iteration, version, told, batches, table)


def _tell_no_one(text: str) -> None:
    """Ignores a note that training has already shown."""


def _acting_version(step: int, settings: SelfRewardingSettings) -> int:
    """The version of the weights that act now; until the next iteration begins, the reference is the newest step's."""
    match settings.options.acting_policy:
        case "reference":
            return settings.acting_version(max(step - 1, 0))
        case "current":
            return step
        case _:
            assert_never(settings.options.acting_policy)
