"""The drift monitor: an alarm with its cause if sampler and learner drift apart.

Each step gives one number, z: the mean over its sequences of (mean of e^min(|Δ|, 3) over the
tokens) − 1. It lies within [0, e³ − 1], so that no single token decides. `monitor.sequential`
defines the test and its guarantee.

An alarm means that z has risen. The cause is then measured without training: the sampler rescores
the step's tokens, receives the same weights again and rescores them once more, and scores sequences
kept from the first steps. The cause is the first that applies of four:

    decode    the rescored tokens agree: decoding or its cache is wrong
    refit     they agree after the same weights are sent again: a weight sync did not take effect
    weights   the kept sequences now disagree too: the two compute differently with these weights
    text      the kept sequences still agree: the samples have become harder to agree on

"Agree" means closer, by ratio, to the usual mismatch than to the mismatch of the alarm. On kept
sequences |Δ| grows as their tokens become less likely, although computation is no worse: with
independent logit errors of constant size, the error of log p grows as 1 − p. So their mismatch is
rescaled to their mean 1 − p at the time they were kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.metrics import LastValue, Metrics
from lockstep.learners.base import Learner
from lockstep.monitor.sequential import DriftState, DriftTest
from lockstep.objectives.mismatch import sequence_mismatch
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.weight_sync.sync import WeightSnapshot

DriftCause = Literal["decode", "refit", "weights", "text"]

FLOOR = 1e-3
"""A mismatch z that is always healthy; about half the difference of two correct fp32 engines."""

_CAP = 3.0  # nats
_KEPT = 16  # sequences
_SURE = 1e-3  # a mean of 1 − p below which a ratio is meaningless


_MEANING: Mapping[DriftCause, str] = {
    "decode": (
        "the sampler agrees when it rescores the same tokens, so its weights are right and "
        "its decoding or cache is wrong"
    ),
    "refit": (
        "the sampler agrees after the weights are sent again, so a weight sync did not take effect"
    ),
    "weights": (
        "neither rescoring nor resending the weights helps, and sequences of the first "
        "steps disagree too, so the two compute differently with these weights: a tensor "
        "is not synced, or the precision no longer suffices"
    ),
    "text": (
        "neither rescoring nor resending the weights helps, but sequences of the first steps "
        "still agree, so the samples have become harder to agree on: longer or less certain"
    ),
}


@dataclass(frozen=True)
class KeptSequences:
    """Sequences kept from the first steps, as JSON types.

    Attributes:
        tokens: Tokens of each sequence.
        mask: Mask of each sequence, 1 for tokens that the policy sampled.
        mismatch: z when kept, scored by the sampler at temperature 1.
        uncertainty: Mean of 1 − p over the sampled tokens when kept.
    """

    tokens: list[list[int]]
    mask: list[list[int]]
    mismatch: float
    uncertainty: float

    def build_batch(self) -> Batch:
        """The sequences as a batch for scoring at temperature 1."""
        tokens = torch.tensor(list(chain.from_iterable(self.tokens)))
        mask = torch.tensor(list(chain.from_iterable(self.mask)))
        lengths = torch.tensor(list(map(len, self.tokens)))
        return Batch(tokens, lengths, {"mask": mask.bool()})


@dataclass(frozen=True)
class WatchState:
    """Checkpointed state of the drift monitor."""

    drift: DriftState = field(default_factory=DriftState)
    kept: KeptSequences | None = None


@dataclass(frozen=True)
class DriftEvidence:
    """Measurements of z at an alarm.

    Attributes:
        usual: Mean of the first steps.
        now: z of this step.
        rescored: z of this step's tokens, rescored by the sampler.
        resent: `rescored` after the same weights were sent again.
        kept_then: z of the kept sequences, scored by the sampler when they were kept.
        kept_now: z of the kept sequences now, rescaled to their uncertainty when kept.
    """

    usual: float
    now: float
    rescored: float
    resent: float
    kept_then: float
    kept_now: float

    @property
    def drift_cause(self) -> DriftCause:
        """The cause of the drift."""
        read = max(self.kept_then, FLOOR)
        midway = read * math.sqrt(max(self.now, FLOOR) / max(self.usual, FLOOR))
        if self.rescored <= midway:
            return "decode"
        if self.resent <= midway:
            return "refit"
        if self.kept_now > midway:
            return "weights"
        return "text"

    def compute_metrics(self) -> Metrics:
        """Metrics of the measurements, as mean e^|Δ|."""
        shown = ("rescored", "resent", "kept_then", "kept_now")
        return Metrics({f"watch/{name}": LastValue(1.0 + getattr(self, name)) for name in shown})

    def __str__(self) -> str:
        return (
            f"{self.drift_cause}: {_MEANING[self.drift_cause]} (mean e^|Δ| "
            f"{1 + self.rescored:.4f} when "
            f"it rescores, {1 + self.resent:.4f} after the weights are resent, "
            f"{1 + self.kept_now:.4f} after {1 + self.kept_then:.4f} on sequences of the first "
            "steps)"
        )


class DriftWatch:
    """Monitors every step for drift before training.

    Args:
        policy: The learner.
        engine: The sampler's session, closed.
        test: The test for drift.
        note: Shows a persistent line.
        cure: Recipe option to set if the text is the cause; empty: none.

    Attributes:
        state: State for checkpoints; it changes only after a complete measurement of a step.
    """

    def __init__(
        self,
        policy: Learner,
        engine: SamplerSession,
        test: DriftTest,
        note: Callable[[str], None],
        cure: str = "",
    ) -> None:
        self._policy = policy
        self._engine = engine
        self._test = test
        self._note = note
        self._cure = cure
        self.state = WatchState()

    def __call__(
        self, step: int, version: int, batch: Batch, snapshot: WeightSnapshot | None = None
    ) -> Metrics:
        """Measures a step's responses.

        Args:
            step: Number of the step, from 1.
            version: Version of the weights of both sampler and learner.
            batch: Responses with `sampler_logprob` and `old_logprob`.
            snapshot: Source of these weights if the sampler rescores; None: the learner.

        Returns:
            `watch/mismatch`, `watch/e_value` and `watch/alarm` (1 from the alarm on); `watch/bound`
            after the first steps; and, at the alarm, the measurements.
        """
        before = self.state
        now = _measure_mismatch(batch, batch["old_logprob"], batch["sampler_logprob"])
        drift = before.drift if now is None else self._test.advance_state(before.drift, now)
        state = replace(before, drift=drift)
        metrics = Metrics()
        if now is not None and drift.bound is not None and state.kept is None:
            state = replace(state, kept=self._keep_sequences(version, batch, snapshot))
        if now is not None and drift.alarm and not before.drift.alarm:
            assert state.kept is not None, "there is a bound, so the first steps are over"
            evidence = self._gather_evidence(version, batch, snapshot, now, drift.mean, state.kept)
            cure = ""
            if evidence.drift_cause == "text" and self._cure:
                cure = f"; {self._cure}"
            self._note(
                f"step {step}: sampler and learner are drifting apart: mean e^|Δ| is "
                f"{1 + now:.4f}, up from {1 + drift.mean:.4f} in the first "
                f"{self._test.baseline_steps} steps (e-value {drift.e_value:.0f}; at most "
                f"{self._test.false_alarm_rate:.1%} of healthy runs raise this alarm); "
                f"{evidence}{cure}"
            )
            metrics = evidence.compute_metrics()
        self.state = state
        if drift.bound is None:
            bound = {}
        else:
            bound = {"watch/bound": LastValue(1.0 + drift.bound)}
        shown = {} if now is None else {"watch/mismatch": LastValue(1.0 + now)}
        known = {
            "watch/e_value": LastValue(drift.e_value),
            "watch/alarm": LastValue(float(drift.alarm)),
        }
        return metrics + {**shown, **bound, **known}

    def dump_state(self) -> dict[str, Any]:
        """The state as JSON types."""
        return asdict(self.state)

    def restore_state(self, saved: Mapping[str, Any]) -> None:
        """Restores the state from `dump_state`."""
        kept = None if saved["kept"] is None else KeptSequences(**saved["kept"])
        self.state = WatchState(DriftState(**saved["drift"]), kept)

    def _keep_sequences(
        self, version: int, batch: Batch, snapshot: WeightSnapshot | None
    ) -> KeptSequences:
        """Keeps sequences from a batch, with their mismatch."""
        rows = torch.linspace(0, len(batch) - 1, min(_KEPT, len(batch))).long()
        kept = replace(batch.select(rows).split_paths(), sampling=None)
        learner_N = self._policy.logprobs(kept)
        with self._engine.at(version, snapshot):
            mismatch = _measure_mismatch(kept, learner_N, self._engine.logprobs(kept))
        return KeptSequences(
            [tokens.tolist() for tokens in kept.sequences()],
            [mask.int().tolist() for mask in kept.sequences("mask")],
            mismatch or 0.0,
            _measure_uncertainty(kept, learner_N),
        )

    def _gather_evidence(
        self,
        version: int,
        batch: Batch,
        snapshot: WeightSnapshot | None,
        now: float,
        usual: float,
        kept: KeptSequences,
    ) -> DriftEvidence:
        """Measures the evidence by rescoring with the sampler at the same weights."""
        own = replace(batch, sampling=None)
        old = kept.build_batch()
        own_N = self._policy.logprobs(own)
        old_N = self._policy.logprobs(old)
        with self._engine.at(version, snapshot):
            rescored = _measure_mismatch(own, own_N, self._engine.logprobs(own))
            self._engine.resend_weights()
            resent = _measure_mismatch(own, own_N, self._engine.logprobs(own))
            kept_now = _measure_mismatch(old, old_N, self._engine.logprobs(old))
        share = kept.uncertainty / max(_measure_uncertainty(old, old_N), _SURE)
        return DriftEvidence(
            usual, now, rescored or 0.0, resent or 0.0, kept.mismatch, (kept_now or 0.0) * share
        )


def _measure_mismatch(batch: Batch, learner_N: Tensor, sampler_N: Tensor) -> float | None:
    """z of a batch; None without sampled tokens.

    A value that is not finite counts as the maximum.
    """
    chose = batch.per_sample(batch.mask.long()) > 0
    if not chose.any():
        return None
    error_B = sequence_mismatch(learner_N, sampler_N, batch.mask, batch.lengths, _CAP)[chose]
    return max(float(error_B.double().nan_to_num(math.exp(_CAP)).mean()) - 1.0, 0.0)


def _measure_uncertainty(batch: Batch, logprob_N: Tensor) -> float:
    """Mean of 1 − p over the sampled tokens."""
    return float(-torch.expm1(logprob_N[batch.mask].double()).mean())
