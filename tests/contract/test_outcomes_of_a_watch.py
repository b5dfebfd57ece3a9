"""What an alarm is of, on fakes whose every number is known; and what a watch keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tabular import TOKENS, TabularLearner, TabularSampler
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.core.types import Request, SamplingParams
from lockstep.monitor.sequential import DriftTest
from lockstep.monitor.watch import FLOOR, DriftEvidence, DriftWatch
from lockstep.rollouts.sampler_session import SamplerSession

TEST = DriftTest(false_alarm_rate=0.01, baseline_steps=3, factor=1.5, floor=FLOOR)
SURE, UNSURE = 0, 1
"""Tokens after which the policy is nearly certain, or not at all. They follow themselves."""
NOISE = torch.linspace(-0.1, 0.1, TOKENS * TOKENS).view(TOKENS, TOKENS).T.contiguous()
"""What the sampler's logits are off by, all the time."""


class Noisy(TabularSampler):
    """Computes logits that are a little off; reads nothing any more once it is lost."""

    error, lost = NOISE, False

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        with self.noise():
            return super().generate(requests, sampling)

    def logprobs(self, batch: Batch) -> Tensor:
        if self.lost:
            raise ConnectionError
        with self.noise():
            return super().logprobs(batch)

    def noise(self) -> Noise:
        return Noise(self)


class Noise:
    def __init__(self, sampler: Noisy) -> None:
        self.sampler, self.exact = sampler, sampler.logits

    def __enter__(self) -> None:
        self.sampler.logits = self.exact + self.sampler.error

    def __exit__(self, *_: object) -> None:
        self.sampler.logits = self.exact


def certain_learner() -> TabularLearner:
    """After `SURE` comes `SURE` nearly always; after any other token anything may come."""
    learner = TabularLearner(1.0)
    with torch.no_grad():
        learner.logits[SURE, SURE] = 6.0
    return learner


class Run:
    """Steps of a run that never trains: only what is asked, and how the sampler errs, changes."""

    def __init__(self, sampler: Noisy) -> None:
        self.notes: list[str] = []
        self.learner, self.sampler = certain_learner(), sampler
        self.engine = SamplerSession(sampler, self.learner)
        self.watch = DriftWatch(self.learner, self.engine, TEST, self.notes.append)
        self.steps = 0

    def step(self, first: int, mask: bool = True) -> Metrics:
        """Answers prompts that end with a token."""
        requests = [Request((first,), 1000 * self.steps + i) for i in range(64)]
        with self.engine.at(0):
            batch = self.engine.generate(requests, SamplingParams(8))
        if not mask:
            batch = batch.with_columns({"mask": torch.zeros_like(batch.mask)})
        self.steps += 1
        return self.watch(
            self.steps, 0, batch.with_columns({"old_logprob": self.learner.logprobs(batch)})
        )

    def until_alarm(self, first: int, steps: int = 60) -> Metrics:
        for _ in range(steps):
            metrics = self.step(first)
            if self.notes:
                return metrics
        raise AssertionError("there was no alarm")


def test_drift_alarm_from_uncertain_text_has_outcome_text() -> None:
    run = Run(Noisy())
    for _ in range(6):
        assert run.step(SURE).floats()["watch/alarm"] == 0
    found = run.until_alarm(UNSURE).floats()
    assert "; text: " in run.notes[0]
    assert found["watch/kept_now"] == pytest.approx(found["watch/kept_then"], rel=1e-6)
    assert found["watch/rescored"] == pytest.approx(found["watch/mismatch"], abs=1e-6)


def test_drift_alarm_from_larger_logit_error_has_outcome_weights() -> None:
    run = Run(Noisy())
    for _ in range(6):
        run.step(UNSURE)
    run.sampler.error = 4 * NOISE
    found = run.until_alarm(UNSURE).floats()
    assert "; weights: " in run.notes[0]
    assert found["watch/kept_now"] - 1 > 3 * (found["watch/kept_then"] - 1)


def test_kept_sequences_made_unlikely_by_policy_give_outcome_text() -> None:
    """The policy comes to be unsure where it was sure: |Δ| of the kept sequences grows, by the
    policy alone.
    """
    run = Run(Noisy())
    for _ in range(6):
        run.step(SURE)
    with torch.no_grad():
        run.learner.logits[SURE, SURE] = 1.0
    with run.engine.at(1):
        pass
    run.watch, old = DriftWatch(run.learner, run.engine, TEST, run.notes.append), run.watch
    run.watch.restore_state(old.dump_state())
    for _ in range(60):
        requests = [Request((SURE,), 5000 + 100 * run.steps + i) for i in range(64)]
        with run.engine.at(1):
            batch = run.engine.generate(requests, SamplingParams(8))
        run.steps += 1
        run.watch(run.steps, 1, batch.with_columns({"old_logprob": run.learner.logprobs(batch)}))
    assert len(run.notes) == 1
    assert "; text: " in run.notes[0]


def test_sampler_failure_during_drift_alarm_leaves_watch_state_unchanged() -> None:
    run = Run(Noisy())
    for _ in range(6):
        run.step(UNSURE)
    run.sampler.error = 20 * NOISE
    while True:
        before = run.watch.state
        run.sampler.lost = True
        try:
            run.step(UNSURE)
        except ConnectionError:
            break
    assert run.watch.state == before
    assert not run.notes


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        ({"rescored": 0.011}, "decode"),
        ({"rescored": 0.08, "resent": 0.011}, "refit"),
        ({"rescored": 0.08, "resent": 0.08, "kept_now": 0.06}, "weights"),
        ({"rescored": 0.08, "resent": 0.08, "kept_now": 0.013}, "text"),
        ({"rescored": 0.02, "kept_then": 0.005}, "text"),
        ({"usual": 0.0, "kept_then": 0.0, "rescored": 5e-4}, "decode"),
    ],
)
def test_drift_evidence_picks_first_matching_outcome(
    measured: dict[str, float], outcome: str
) -> None:
    usual = DriftEvidence(
        usual=0.01, now=0.09, rescored=0.08, resent=0.08, kept_then=0.01, kept_now=0.01
    )
    evidence = replace(usual, **measured)
    assert evidence.drift_cause == outcome
    assert str(evidence).startswith(f"{outcome}: ")
