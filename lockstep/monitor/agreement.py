"""Agreement of sampler and learner at every step: both must give the same tokens the same probability.

Both sides are compared at the weights that sampled, before a step is trained on. If these are the learner's own,
both have scored the same tokens with the same weights. If they are older, because the sampler is one step ahead,
the learner has moved meanwhile. The sampler measures how far: it reads the tokens with the weights that sampled them,
and once more with those that the learner has now:

    Δ = (learner_now − sampler_sampled) − (sampler_reads_now − sampler_read_then)

The second bracket is staleness and no fault. A sampler that decodes wrong differs from its own reading; one whose
weights or kernels are wrong differs from the learner. A sampler reads at temperature 1 with all tokens. If it sampled
otherwise, tokens are only read: Δ = learner_now − sampler_reads_now at temperature 1, and decoding is compared only in
steps without staleness, such as the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.errors import BrokenPromiseError
from lockstep.learners.base import Learner
from lockstep.metrics import Last, Metrics, Sum
from lockstep.monitor.watch import Watch
from lockstep.objectives.mismatch import agreement
from lockstep.objectives.tally import Tally
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.weight_sync.sync import Snapshot

_LOOKED_AT = 64
"""Responses of a step that are compared where scoring all of them would cost too much."""


class Disagreement(BrokenPromiseError):
    """Sampler and learner differ by more than the bound.

    Attributes:
        metrics: Metrics of the step, which was not trained on.
    """

    def __init__(self, message: str, metrics: Metrics) -> None:
        super().__init__(message)
        self.metrics = metrics


@dataclass(frozen=True)
class Promise:
    """The promised bound, and the reaction to a breach.

    Attributes:
        bound: Greatest mean of e^|Δ|.
        stops: True if a breach ends the run.
        command: Command that finds the cause.
        exact: True if both sides compute by the same kernels, so that not one token may differ.
        stops_inexact: True if a token that differs ends the run, too.
        inexact: Why the two sides compute by other kernels, where they do.
    """

    bound: float
    stops: bool
    command: str
    exact: bool = False
    stops_inexact: bool = False
    inexact: str | None = None


@dataclass(frozen=True)
class State:
    """State of the comparison in a checkpoint.

    Attributes:
        total: Tally of all steps.
        broken: True if the user was told of a breach.
    """

    total: Tally = field(default_factory=Tally)
    broken: bool = False


@dataclass(frozen=True)
class Certificate:
    """The exactness of a run.

    Attributes:
        level: E0, watched; E1, within the bound, or the run stops; E2, equal to the bit; E3, in any batch as well, for
            which `lockstep certify` looks (docs/glossary.md); none, where no token was compared.
        tokens: Tokens that sampler and learner both scored.
        mismatches: Those whose two log-probabilities are not the same to the bit.
        largest_gap: Largest |Δ| of them, nats.
        exact_kernels: True if both sides compute by `models.exact`.
        reason: Why the level is no higher; None: it is E2, or E3 where that was looked for.
    """

    level: Literal["none", "E0", "E1", "E2", "E3"]
    tokens: int
    mismatches: int
    largest_gap: float
    exact_kernels: bool
    reason: str | None = None

    @classmethod
    def of(cls, total: Tally, promise: Promise) -> Certificate:
        """The certificate of what was compared under a promise."""
        reason = promise.inexact
        if not total.tokens:
            level, reason = "none", reason or "no token was compared"
        elif promise.exact and not total.mismatches:
            level = "E2"
        else:
            level = "E1" if promise.stops else "E0"
        if promise.exact and total.mismatches:
            reason = f"{total.mismatches:,} tokens have another log-probability sampled than trained"
        return cls(level, int(total.tokens), total.mismatches, total.largest, promise.exact, reason)


class Agreement:
    """Compares sampler and learner at every step, before it is trained on.

    Args:
        policy: The learner whose weights sample.
        engine: The sampler's session.
        promise: The promised bound.
        watch: Looks for drift as well; None: it is not watched, or any token that differs is seen.
        note: Shows a line that stays.

    Attributes:
        state: State for checkpoints; it changes only when a step has been compared completely.
        watch: The watch, which has a state of its own.
    """

    def __init__(
        self,
        policy: Learner,
        engine: SamplerSession,
        promise: Promise,
        watch: Watch | None,
        note: Callable[[str], None],
    ) -> None:
        self._policy, self._engine, self._promise, self._note = policy, engine, promise, note
        self.watch = watch
        self.state = State()

    def __call__(self, step: int, version: int, batch: Batch, snapshot: Snapshot | None = None) -> Metrics:
        """Compares tokens that both sides have scored.

        Args:
            step: Its number, from 1.
            version: Version of the weights of both.
            batch: Responses with `sampler_logprob` and `old_logprob`, of the masked tokens, with the same weights.
            snapshot: Source of these weights if the sampler is asked; None: the learner.

        Returns:
            `agreement/…`: see `objectives.mismatch.agreement`; `tokens`, the number compared, `bound`, and `breach`, 1
            if it is broken; where both sides are exact, `mismatches`; and the metrics of the watch.

        Raises:
            Disagreement: If the bound is broken, and a breach stops the run.
        """
        pair = batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths
        now = Tally.of(*pair)
        total = self.state.total + now
        broken = now.breaks(self._promise.bound) or total.breaks(self._promise.bound)
        known = Metrics(tokens=Sum(now.tokens), bound=Last(self._promise.bound), breach=Last(float(broken)))
        if self._promise.exact:
            known["mismatches"] = Sum(now.mismatches)
        metrics = (agreement(*pair) + known).with_prefix("agreement")
        if broken:
            self._check_bound(step, now, total, metrics)
        if self._promise.exact and now.mismatches:
            self._check_bits(step, now, metrics)
        if self.watch is not None:
            metrics += self.watch(step, version, batch, snapshot)
        self.state = State(total, self.state.broken or broken)
        return metrics

    def compare_unscored(self, step: int, version: int, batch: Batch, snapshot: Snapshot | None = None) -> Metrics:
        """Compares as `__call__` does, for responses that the learner has not scored: it scores some of them."""
        some = batch.select(_pick_responses(batch))
        return self(step, version, some.with_columns({"old_logprob": self._policy.logprobs(some)}), snapshot)

    def read(self, batch: Batch) -> Tensor:
        """Log-probabilities of some responses of a batch, read by the sampler with its current weights, [N]."""
        return self._engine.logprobs(_plain(batch.select(_pick_responses(batch))))

    def compare_later(self, step: int, snapshot: Snapshot, batch: Batch, read_N: Tensor) -> Metrics:
        """Compares as `__call__` does, for responses that older weights may have sampled; outside the session.

        Args:
            step: Its number, from 1.
            snapshot: Snapshot of the learner's weights.
            batch: Responses.
            read_N: Result of `read` with the weights that sampled them.
        """
        some = batch.select(_pick_responses(batch))
        if bool((some["version"] == snapshot.version).all()):
            return self.compare_unscored(step, snapshot.version, batch, snapshot)
        with self._engine.at(snapshot.version, snapshot):
            now_N = self._engine.logprobs(_plain(some))
        if some.sampling is None or some.sampling.unshaped:
            sampler_N = some["sampler_logprob"] + now_N - read_N
        else:
            some, sampler_N = _plain(some), now_N
        columns = {"old_logprob": self._policy.logprobs(some), "sampler_logprob": sampler_N}
        return self(step, snapshot.version, some.with_columns(columns), snapshot)

    @property
    def certificate(self) -> Certificate:
        """The level that the run has reached so far, and what it rests on."""
        return Certificate.of(self.state.total, self._promise)

    def dump(self) -> dict[str, Any]:
        """The state as JSON types."""
        return {**asdict(self.state), "watch": None if self.watch is None else self.watch.dump()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores the state from `dump`."""
        self.state = State(Tally(**saved["total"]), saved["broken"])
        if self.watch is not None and saved["watch"] is not None:
            self.watch.restore(saved["watch"])

    def _check_bound(self, step: int, now: Tally, total: Tally, metrics: Metrics) -> None:
        """Raises, or notes once, if the bound is broken."""
        over = now if now.breaks(self._promise.bound) else total
        sentence = f"step {step}: sampler and learner disagree, {_figures(over, over is total, self._promise.bound)}"
        if self._promise.stops:
            raise Disagreement(
                f"{sentence}; nothing of this step was trained on; find the cause with `{self._promise.command}`, or "
                "continue with agreement.on_breach=warn",
                metrics,
            )
        if not self.state.broken:
            self._note(f"{sentence}; the run continues, since agreement.on_breach=warn; `{self._promise.command}`")

    def _check_bits(self, step: int, now: Tally, metrics: Metrics) -> None:
        """Raises, or notes once, if a token differs although both sides are exact."""
        sentence = (
            f"step {step}: {now.mismatches} of {now.tokens:.0f} tokens have another log-probability where they were "
            f"sampled than where they are trained, by up to {now.largest:.2g} nats, although both sides are exact"
        )
        if self._promise.stops_inexact:
            raise Disagreement(
                f"{sentence}; nothing of this step was trained on; find the cause with `{self._promise.command}`, or "
                "continue with agreement.exact=true",
                metrics,
            )
        if not self.state.total.mismatches:
            self._note(f"{sentence}; the run continues within its bound (E1)")


def _figures(over: Tally, overall: bool, bound: float) -> str:
    where = "of all steps so far" if overall else "of this step"
    unknown = f"{over.unknown} of them without a finite log-probability on both sides, " if over.unknown else ""
    return (
        f"mean e^|Δ| is {over.mean:.6g} over {over.tokens:.0f} tokens {where}, {unknown}and the bound is {bound:g} "
        "(agreement.max_mult_prob_error)"
    )


def _pick_responses(batch: Batch) -> Tensor:
    """Selects responses from all over a batch."""
    return torch.linspace(0, len(batch) - 1, min(_LOOKED_AT, len(batch))).long()


def _plain(batch: Batch) -> Batch:
    """The same tokens, to be scored at temperature 1, where every token has a probability."""
    return replace(batch, sampling=None)
