"""Checks at every step that sampler and learner give tokens the same probability.

Both sides are compared at the weights that sampled, before a step is trained on. If these are the
learner's current weights, both have scored the same tokens with the same weights. If they are
older, because the sampler is one step ahead, the learner has changed in the meantime. The sampler
measures the change: it rescores the tokens with the weights that sampled them, and again with the
learner's current weights:

    Δ = (learner_now − sampler_sampled) − (sampler_reads_now − sampler_read_then)

The second parenthesis is staleness, not an error. A sampler with a decoding error disagrees with
its own rescoring; a sampler with wrong weights or kernels disagrees with the learner. A sampler
rescores at temperature 1 over all tokens. If it sampled differently, tokens are only rescored: Δ =
learner_now − sampler_reads_now at temperature 1, and decoding is compared only in steps without
staleness, such as the first.

If both sides are exact, the learner's log-probabilities equal the sampler's. So only a keyed share
of a step's responses is recomputed before training (`score_recomputed`). The first minibatch is
trained at the same weights, and its other tokens are compared then (`compare_trained`). After the
first token that differs, all are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lockstep.core import keyed
from lockstep.core.batch import PATH, Batch
from lockstep.core.errors import BrokenPromiseError
from lockstep.core.metrics import LastValue, Max, Mean, Metrics, Sum
from lockstep.learners.base import Learner
from lockstep.monitor.watch import DriftWatch
from lockstep.objectives.masks import zero_outside_mask
from lockstep.objectives.mismatch import measure_agreement
from lockstep.objectives.tally import MismatchTally
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.weight_sync.sync import WeightSnapshot

_LOOKED_AT = 64
"""Number of responses per step to compare if scoring all would be too expensive."""

SHARE = 8
_FEWEST = 4
"""One in `SHARE` responses per step, at least `_FEWEST`, is recomputed if both sides are exact."""


class DisagreementError(BrokenPromiseError):
    """Sampler and learner differ by more than the bound.

    Attributes:
        metrics: Metrics of the step, which was not trained.
    """

    def __init__(self, message: str, metrics: Metrics) -> None:
        super().__init__(message)
        self.metrics = metrics


@dataclass(frozen=True)
class AgreementPromise:
    """The promised bound and the action on a violation.

    Attributes:
        bound: Maximum mean of e^|Δ|.
        stops: True if a violation ends the run.
        command: Doctor command that locates the cause, for messages.
        exact: True if both sides use the same kernels, so that no token may differ.
        stops_inexact: True if a differing token also ends the run.
        inexact: The reason why both sides use different kernels; None if they do not.
    """

    bound: float
    stops: bool
    command: str
    exact: bool = False
    stops_inexact: bool = False
    inexact: str | None = None


@dataclass(frozen=True)
class AgreementState:
    """Checkpointed state of the comparison.

    Attributes:
        total: Tally of all steps.
        broken: True if a violation was reported.
        not_recomputed: Number of tokens that were not compared.
        http_episodes: Number of episodes of agents.
    """

    total: MismatchTally = field(default_factory=MismatchTally)
    broken: bool = False
    not_recomputed: int = 0
    http_episodes: int = 0


@dataclass(frozen=True)
class ExactnessCertificate:
    """The exactness of a run.

    Attributes:
        level: E0: monitored; E1: within the bound, or the run stops; E2: bit-identical; E3:
            bit-identical in any batch, E4: also on ranks, as checked by `lockstep certify`
            (docs/concepts/exactness.md); none: no token was compared.
        tokens: Number of tokens scored by both sampler and learner.
        not_recomputed: Number of tokens scored only by the sampler at the weights that sampled
            them.
        mismatches: Number of compared tokens whose log-probabilities are not bit-identical.
        largest_gap: Largest |Δ| of a compared token, nats.
        exact_kernels: True if both sides use the kernels of `models.exact`.
        reason: Reason why the level is not higher; None: the level is E2, or E3 if tested.
        http_episodes: Number of episodes of agents, whose tokens came through HTTP.
    """

    level: Literal["none", "E0", "E1", "E2", "E3", "E4"]
    tokens: int
    not_recomputed: int
    mismatches: int
    largest_gap: float
    exact_kernels: bool
    reason: str | None = None
    http_episodes: int = 0

    @classmethod
    def from_tally(
        cls, total: MismatchTally, promise: AgreementPromise, not_recomputed: int = 0
    ) -> ExactnessCertificate:
        """The certificate of a comparison under a promise."""
        reason = promise.inexact
        if not total.tokens:
            level = "none"
            reason = reason or "no token was compared"
        elif promise.exact and not total.mismatches:
            level = "E2"
        else:
            level = "E1" if promise.stops else "E0"
        if promise.exact and total.mismatches:
            reason = (
                f"{total.mismatches:,} tokens have different log-probabilities in sampler and "
                "learner"
            )
        tokens = int(total.tokens)
        return cls(
            level, tokens, not_recomputed, total.mismatches, total.largest, promise.exact, reason
        )


class Agreement:
    """Compares sampler and learner at every step, before training.

    Args:
        policy: The learner whose weights sample.
        engine: The sampler's session.
        promise: The promised bound.
        watch: The drift monitor; None: not monitored, or exactness detects any differing token.
        note: Shows a persistent line.

    Attributes:
        state: State for checkpoints; it changes only when a step has been compared completely.
        watch: The drift monitor, which has its own state.
    """

    def __init__(
        self,
        policy: Learner,
        engine: SamplerSession,
        promise: AgreementPromise,
        watch: DriftWatch | None,
        note: Callable[[str], None],
    ) -> None:
        self._policy = policy
        self._engine = engine
        self._promise = promise
        self._note = note
        self.watch = watch
        self.state = AgreementState()
        self._before = self.dump_state()

    def compare(
        self,
        step: int,
        version: int,
        batch: Batch,
        snapshot: WeightSnapshot | None = None,
        read_N: Tensor | None = None,
    ) -> Metrics:
        """Compares tokens of a step.

        Args:
            step: Number of the step, from 1.
            version: Version of the learner's weights.
            batch: Responses with `sampler_logprob`, and `old_logprob` by the same weights.
                Responses that are not `recomputed` are left out; without `old_logprob` the learner
                scores some of them here.
            snapshot: Source of the learner's weights if the sampler rescores; None: the learner.
            read_N: Result of `read_back`, if older weights may have sampled; then call this outside
                the session.

        Returns:
            `agreement/…`: see `objectives.mismatch.measure_agreement`; `tokens`, the number
                compared, `bound`, and `breach`, 1 if it is violated; if both sides are exact,
                `mismatches` and `not_recomputed`, the number not compared; and the drift monitor's
                metrics.

        Raises:
            DisagreementError: If the bound is violated and a violation stops the run.
        """
        if "old_logprob" in batch.token:
            some = batch
        else:
            some = batch.select(_pick_responses(batch))
        if "recomputed" in some.sample:
            some = _select_recomputed(some)
        if snapshot is not None and read_N is not None and bool((some["version"] != version).any()):
            # The sampler's log-probabilities are corrected for staleness.
            with self._engine.at(snapshot.version, snapshot):
                now_N = self._engine.logprobs(_drop_sampling(some))
            if some.sampling is None or some.sampling.unshaped:
                now_N = some["sampler_logprob"] + now_N - read_N
            else:
                some = _drop_sampling(some)
            some = some.with_columns({"sampler_logprob": now_N})
        if "old_logprob" not in some.token:
            some = some.with_columns({"old_logprob": self._policy.logprobs(some)})
        left = int(batch.mask.sum()) - int(some.mask.sum())
        pair = some["old_logprob"], some["sampler_logprob"], some.mask, some.lengths
        metrics, state = self._judge_step(
            step, MismatchTally.from_logprobs(*pair), measure_agreement(*pair), left
        )
        if self.watch is not None:
            metrics += self.watch(step, version, some, snapshot)
        if PATH in batch.token:
            state = replace(state, http_episodes=state.http_episodes + len(batch))
        self.state = state
        return metrics

    def score_recomputed(self, batch: Batch, seed: int, step: int) -> Batch:
        """Adds the learner's log-probabilities at the weights that sampled.

        Args:
            batch: Responses with `sampler_logprob`.
            seed: Seed of the run; with `step` it chooses the responses to recompute.
            step: Number of finished steps.

        Returns:
            The batch with `old_logprob` and, per response, `recomputed`. The sampler's
            log-probabilities are used as the learner's if both sides are exact, no token has
            differed so far, and none differs in the recomputed share.
        """
        self._before = self.dump_state()
        if (
            self._promise.exact
            and not self._promise.stops_inexact
            and not self.state.total.mismatches
        ):
            sampler_N = zero_outside_mask(batch["sampler_logprob"], batch.mask)
            count = min(len(batch), max(_FEWEST, len(batch) // SHARE))
            chosen_B = torch.zeros(len(batch), dtype=torch.bool)
            chosen_B[keyed.draw_sample(len(batch), count, seed, "recomputed", step)] = True
            batch = batch.with_columns({"old_logprob": sampler_N}, {"recomputed": chosen_B})
            share = _select_recomputed(batch)
            if bool(sampler_N.isfinite().all()) and torch.equal(
                self._policy.logprobs(share), share["old_logprob"]
            ):
                return batch
        everything = torch.ones(len(batch), dtype=torch.bool)
        return batch.with_columns(
            {"old_logprob": self._policy.logprobs(batch)}, {"recomputed": everything}
        )

    def compare_trained(self, step: int, now: MismatchTally) -> Metrics:
        """Compares the tokens that the first minibatch scored and `score_recomputed` did not.

        Args:
            step: Number of the step, from 1; call `compare` first.
            now: Tally of these tokens, from before the weights changed.

        Raises:
            DisagreementError: As in `compare`; the state is reset to before the step.
        """
        mean = Mean(now.tokens + now.error, now.tokens)  # a token counts at most as 3 nats
        measured = Metrics(token_mult_prob_error=mean, max_abs_logprob_diff=Max(now.largest))
        try:
            metrics, self.state = self._judge_step(step, now, measured, -int(now.tokens))
        except DisagreementError:
            self.restore_state(self._before)
            raise
        return metrics

    def read_back(self, batch: Batch) -> Tensor:
        """Log-probabilities of some responses, rescored by the sampler's current weights, [N]."""
        return self._engine.logprobs(_drop_sampling(batch.select(_pick_responses(batch))))

    @property
    def certificate(self) -> ExactnessCertificate:
        """The exactness level of the run so far, with its evidence."""
        certificate = ExactnessCertificate.from_tally(
            self.state.total, self._promise, self.state.not_recomputed
        )
        return replace(certificate, http_episodes=self.state.http_episodes)

    def dump_state(self) -> dict[str, Any]:
        """The state as JSON types."""
        return {
            **asdict(self.state),
            "watch": None if self.watch is None else self.watch.dump_state(),
        }

    def restore_state(self, saved: Mapping[str, Any]) -> None:
        """Restores the state from `dump_state`."""
        self.state = AgreementState(
            MismatchTally(**saved["total"]),
            saved["broken"],
            saved.get("not_recomputed", 0),
            saved.get("http_episodes", 0),
        )
        if self.watch is not None and saved["watch"] is not None:
            self.watch.restore_state(saved["watch"])

    def _judge_step(
        self, step: int, now: MismatchTally, measured: Metrics, not_recomputed: int
    ) -> tuple[Metrics, AgreementState]:
        """Metrics and state after more tokens; raises or notes once if a promise is broken."""
        total = self.state.total + now
        promise = self._promise
        broken = now.exceeds_bound(promise.bound) or total.exceeds_bound(promise.bound)
        known = Metrics(
            tokens=Sum(now.tokens), bound=LastValue(promise.bound), breach=Max(float(broken))
        )
        if promise.exact:
            known += Metrics(mismatches=Sum(now.mismatches), not_recomputed=Sum(not_recomputed))
        metrics = (measured + known).with_prefix("agreement")
        if broken:
            self._check_bound(step, now, total, metrics)
        if promise.exact and now.mismatches:
            self._check_bits(step, now, metrics)
        return metrics, replace(
            self.state,
            total=total,
            broken=self.state.broken or broken,
            not_recomputed=self.state.not_recomputed + not_recomputed,
        )

    def _check_bound(
        self, step: int, now: MismatchTally, total: MismatchTally, metrics: Metrics
    ) -> None:
        """Raises, or notes once, if the bound is violated."""
        bound = self._promise.bound
        if now.exceeds_bound(bound):
            over = now
            where = "of this step"
        else:
            over = total
            where = "of all steps so far"
        unknown = ""
        if over.unknown:
            unknown = f"{over.unknown} of them without finite log-probabilities on both sides, "
        sentence = (
            f"step {step}: sampler and learner disagree, mean e^|Δ| is {over.mean:.6g} over "
            f"{over.tokens:.0f} tokens {where}, {unknown}and the bound is {bound:g} "
            "(agreement.max_mult_prob_error)"
        )
        if self._promise.stops:
            raise DisagreementError(
                f"{sentence}; nothing of this step was trained on; locate the cause with "
                f"`{self._promise.command}`, or continue with agreement.on_breach=warn",
                metrics,
            )
        if not self.state.broken:
            self._note(
                f"{sentence}; the run continues, since agreement.on_breach=warn; "
                f"`{self._promise.command}`"
            )

    def _check_bits(self, step: int, now: MismatchTally, metrics: Metrics) -> None:
        """Raises, or notes once, if a token differs although both sides are exact."""
        sentence = (
            f"step {step}: {now.mismatches} of {now.tokens:.0f} tokens have different "
            f"log-probabilities in sampler and learner, by up to {now.largest:.2g} nats, although "
            "both are exact"
        )
        if self._promise.stops_inexact:
            raise DisagreementError(
                f"{sentence}; nothing of this step was trained on; locate the cause with "
                f"`{self._promise.command}`, or continue with agreement.exact=true",
                metrics,
            )
        if not self.state.total.mismatches:
            self._note(
                f"{sentence}; the run continues within its bound (E1), and recomputes every token "
                "from now on"
            )


def _pick_responses(batch: Batch) -> Tensor:
    """Selects responses evenly from a batch."""
    return torch.linspace(0, len(batch) - 1, min(_LOOKED_AT, len(batch))).long()


def _select_recomputed(batch: Batch) -> Batch:
    return batch.select(batch["recomputed"].nonzero().squeeze(-1))


def _drop_sampling(batch: Batch) -> Batch:
    """The same tokens at temperature 1, at which every token has a probability."""
    return replace(batch, sampling=None)
