"""The promise, kept at every step: what sampled and what learns give the same tokens the same probability.

Both sides are compared at the weights that sampled, before a step is trained on. Where these are the learner's own,
both have scored the same tokens with the same weights. Where they are older, because the sampler draws one step ahead,
the learner has moved meanwhile. How far, the sampler tells: it reads the tokens with the weights that drew them, and
once more with those that the learner has now:

    Δ = (learner_now − sampler_drew) − (sampler_reads_now − sampler_read_then)

The second bracket is staleness and no fault. A sampler that decodes wrong differs from what it reads itself; one whose
weights or kernels are wrong differs from the learner. A sampler reads at temperature 1 with all tokens. What was drawn
otherwise is only read: there, Δ = learner_now − sampler_reads_now at temperature 1, and decoding is compared in those
steps alone in which nothing is stale, such as the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
"""Responses of a step that are compared where scoring all of them would be work of its own."""


class Disagreement(BrokenPromiseError):
    """Sampler and learner differ by more than the bound.

    Attributes:
        metrics: Of the step that was not trained on.
    """

    def __init__(self, message: str, metrics: Metrics) -> None:
        super().__init__(message)
        self.metrics = metrics


@dataclass(frozen=True)
class Promise:
    """What is promised, and what happens where it is broken.

    Attributes:
        bound: On the mean of e^|Δ|.
        stops: Whether a breach ends the run.
        command: Finds the cause.
    """

    bound: float
    stops: bool
    command: str


@dataclass(frozen=True)
class State:
    """What a checkpoint holds.

    Attributes:
        total: Of all steps.
        broken: Whether the user was told of a breach.
    """

    total: Tally = field(default_factory=Tally)
    broken: bool = False


class Agreement:
    """Compares sampler and learner at every step, before it is trained on.

    Args:
        policy: The learner whose weights sample.
        engine: The sampler's bracket.
        promise: What is promised.
        watch: Looks for drift as well; None: nobody does.
        note: Shows a line that stays.

    Attributes:
        state: All that it knows; it changes when a step has been compared whole, and not before.
        watch: As given; it has a state of its own.
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
        """Compares what was scored by both sides.

        Args:
            step: Its number, from 1.
            version: Of the weights of both.
            batch: With `sampler_logprob` and `old_logprob`, of the masked tokens, with the same weights.
            snapshot: Where the sampler gets these weights from, if it is asked; None: from the learner.

        Returns:
            `agreement/…`: as `objectives.mismatch.agreement`, `tokens` that were compared, `bound`, and `breach`, which
            is 1 where it is broken; and what the watch has seen.

        Raises:
            Disagreement: If the promise is broken, and a breach stops the run.
        """
        pair = batch["old_logprob"], batch["sampler_logprob"], batch.mask, batch.lengths
        now = Tally.of(*pair)
        total = self.state.total + now
        broken = now.breaks(self._promise.bound) or total.breaks(self._promise.bound)
        known = Metrics(tokens=Sum(now.tokens), bound=Last(self._promise.bound), breach=Last(float(broken)))
        metrics = (agreement(*pair) + known).with_prefix("agreement")
        if broken:
            self._check_bound(step, now, total, metrics)
        if self.watch is not None:
            metrics += self.watch(step, version, batch, snapshot)
        self.state = State(total, self.state.broken or broken)
        return metrics

    def compare_unscored(self, step: int, version: int, batch: Batch, snapshot: Snapshot | None = None) -> Metrics:
        """As when called, for responses that the learner has not scored: it scores some of them."""
        some = batch.select(_pick_responses(batch))
        return self(step, version, some.with_columns({"old_logprob": self._policy.logprobs(some)}), snapshot)

    def read(self, batch: Batch) -> Tensor:
        """What the sampler makes of some responses of a batch, reading them with the weights that it has, [N]."""
        return self._engine.logprobs(_plain(batch.select(_pick_responses(batch))))

    def compare_later(self, step: int, snapshot: Snapshot, batch: Batch, read_N: Tensor) -> Metrics:
        """As when called, for responses that older weights may have drawn; outside of the bracket.

        Args:
            step: Its number, from 1.
            snapshot: Of the weights that the learner has.
            batch: Responses.
            read_N: What `read` gave with the weights that drew them.
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

    def dump(self) -> dict[str, Any]:
        """The state as JSON types."""
        return {**asdict(self.state), "watch": None if self.watch is None else self.watch.dump()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Takes back what `dump` gave."""
        self.state = State(Tally(**saved["total"]), saved["broken"])
        if self.watch is not None and saved["watch"] is not None:
            self.watch.restore(saved["watch"])

    def _check_bound(self, step: int, now: Tally, total: Tally, metrics: Metrics) -> None:
        """Stops, or tells once."""
        over = now if now.breaks(self._promise.bound) else total
        told = f"step {step}: sampler and learner disagree, {_figures(over, over is total, self._promise.bound)}"
        if self._promise.stops:
            raise Disagreement(
                f"{told}; nothing of this step was trained on; find the cause with `{self._promise.command}`, or go on "
                "with agreement.on_breach=warn",
                metrics,
            )
        if not self.state.broken:
            self._note(f"{told}; the run goes on, since agreement.on_breach=warn; `{self._promise.command}`")


def _figures(over: Tally, whole: bool, bound: float) -> str:
    where = "of all steps so far" if whole else "of this step"
    unknown = f"{over.unknown} of them without a finite log-probability on both sides, " if over.unknown else ""
    return (
        f"mean e^|Δ| is {over.mean:.6g} over {over.tokens:.0f} tokens {where}, {unknown}and the bound is {bound:g} "
        "(agreement.max_mult_prob_error)"
    )


def _pick_responses(batch: Batch) -> Tensor:
    """Responses from all over a batch."""
    return torch.linspace(0, len(batch) - 1, min(_LOOKED_AT, len(batch))).long()


def _plain(batch: Batch) -> Batch:
    """To be scored at temperature 1, where every token can be drawn."""
    return replace(batch, sampling=None)
