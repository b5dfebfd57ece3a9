"""Time of `lockstep doctor locate`, said when engines are open, and kept to: `grid.budget_s`.

    pass of T tokens   o + t · T seconds, measured for each engine on two lengths when it is open; by decoding, a step
                       for each token behind the prompt. One that is not open yet takes as long as its like, or as the
                       slowest; its steps, as the fastest takes for one token: a step reads all weights, too
    comparison         every request by both engines; of the one that differs most, both once more, two passes in
                       float64 and four in the engines' types
    place              where they disagree, at most so many passes more: most find the smallest request

What does not fit is shortened: half of the requests, down to one; then half of its new tokens, down to an eighth;
then comparisons are left out, the last ones first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from lockstep.batch import Batch
from lockstep.doctor.locate_engines import EngineChoice, EnginePair
from lockstep.errors import InputError
from lockstep_doctor.tap import Tap

_SHORT, _STEPS = 16, 8
_CUTS = 3
_FLOOR = (1, 1, 2, 4)
"""Passes of reference, other engine, float64 and the engines' types that tell a gap from rounding."""
_PLACE = (50, 70, 25, 0)
"""Passes, at most, that find and shrink a place."""


@dataclass(frozen=True)
class PassTime:
    """Seconds of a pass: of its own, and for each token."""

    fixed: float
    token: float

    def of(self, tokens: int) -> float:
        """Seconds of a pass over one sequence."""
        return self.fixed + self.token * tokens

    @classmethod
    def measure(cls, tap: Tap, tokens_T: Tensor, short: int, long: int, decodes: bool) -> PassTime:
        """Reads a sequence's beginnings of two lengths, the short one twice: kernels are opened by the first pass.

        A token of a prefill takes no more than its share of the short one; between close lengths, noise may say so.
        """
        tap.run(tokens_T[:short], {})
        once, more = (_time(tap, tokens_T[:size]) for size in (short, long))
        token = max(0.0, more - once) / max(1, long - short)
        token = token if decodes else min(token, once / short)
        return cls(once - token * short, token)


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of comparisons: where all agree, and at most, where the slowest has a place."""

    agree: float
    place: float

    @property
    def sentence(self) -> str:
        """The figures in words."""
        return f"predicted: {self.agree / 60:.1f} minutes, and up to {self.place / 60:.1f} more where two disagree"


class LocateTime:
    """The time that is left, and what it is enough for.

    Args:
        budget_s: Seconds that all may take; None: any number.
        begun: When all began, by `time.monotonic`.
        drawn: The requests.
    """

    def __init__(self, budget_s: float | None, begun: float, drawn: Batch) -> None:
        self.prompt = int(drawn.per_sample((~drawn.mask).long()).min())
        self._budget_s, self._end = budget_s, math.inf if budget_s is None else begun + budget_s
        self._requests = list(drawn.sequences())
        self._longest = max(self._requests, key=len)
        self._witnesses: list[PassTime] = []
        self._engines: list[tuple[EngineChoice, PassTime]] = []

    def is_left(self) -> bool:
        """True until the end."""
        return time.monotonic() < self._end

    def measure_witnesses(self, witnesses: Sequence[Tap]) -> None:
        """Measures the model in float64, and in the engines' types."""
        self._witnesses = [self._measure(tap, None) for tap in witnesses]

    def measure(self, comparison: EnginePair, taps: Sequence[Tap]) -> None:
        """Measures the engines of a comparison, if they are new."""
        known = [choice for choice, _ in self._engines]
        for choice, tap in zip(comparison.sides, taps, strict=True):
            if choice not in known:
                self._engines.append((choice, self._measure(tap, choice.options.prompt)))

    def _measure(self, tap: Tap, prompt: int | None) -> PassTime:
        size = len(self._longest)
        short, long = (min(_SHORT, size), size) if prompt is None else (prompt, min(prompt + _STEPS, size))
        return PassTime.measure(tap, self._longest, short, long, prompt is not None)

    def predict(self, comparisons: Sequence[EnginePair], requests: Sequence[Tensor]) -> TimeEstimate:
        """Predicts comparisons on requests."""
        sizes, worst = list(map(len, requests)), max(map(len, requests))
        agree, place = 0.0, 0.0
        for one in comparisons:
            sides = [self._expect(choice) for choice in one.sides]
            passes = [found.of(worst) for found in (*sides, *self._witnesses)]
            agree += sum(side.of(size) for side in sides for size in sizes)
            agree += sum(count * seconds for count, seconds in zip(_FLOOR, passes, strict=True))
            place = max(place, sum(count * seconds for count, seconds in zip(_PLACE, passes, strict=True)))
        return TimeEstimate(agree, place)

    def choose(self, comparisons: Sequence[EnginePair]) -> list[Tensor]:
        """Returns as many requests, and so much of them, as comparisons have time for; none if for none."""
        for requests in _shorten(self._requests, self.prompt):
            predicted = self.predict(comparisons, requests)
            if time.monotonic() + predicted.agree < self._end:
                return requests
        return []

    def share(self, comparisons: Sequence[EnginePair]) -> tuple[Sequence[EnginePair], list[Tensor]]:
        """Returns as many of the first comparisons as there is time for, and what they read; none if for none."""
        for count in range(len(comparisons), 0, -1):
            if requests := self.choose(comparisons[:count]):
                return comparisons[:count], requests
        return [], []

    def describe(self, requests: Sequence[Tensor]) -> str:
        """Says what is read of the requests."""
        longest = max(map(len, requests))
        return f"{len(requests)} of {len(self._requests)} requests, {longest} of {len(self._longest)} tokens at most"

    def list_dropped(self, requests: Sequence[Tensor]) -> Iterator[str]:
        """Yields what was drawn and is not among the requests that were chosen."""
        count, first, whole = len(self._requests), len(requests[0]), len(self._requests[0])
        if len(requests) < count:
            yield f"{count - len(requests)} of {count} drawn requests"
        if first < whole:
            yield f"the last {whole - first} of {whole} tokens"

    def refuse(self, comparison: EnginePair) -> InputError:
        """Makes the error that says how long a comparison takes at least."""
        *_, least = _shorten(self._requests, self.prompt)
        needed = self.predict([comparison], least).agree
        left = self._end - time.monotonic()
        return InputError(
            f"locate needs {needed:.1f} s for one request of {len(least[0])} tokens, and {max(left, 0):.1f} s of "
            f"grid.budget_s={self._budget_s:g} are left: raise it"
        )

    def _expect(self, choice: EngineChoice) -> PassTime:
        """Seconds of an engine, by those that were measured."""
        same = [seconds for one, seconds in self._engines if one == choice]
        if same:
            return same[0]
        by_prefill = [seconds for one, seconds in self._engines if one.options.prompt is None]
        if choice.options.prompt is not None:
            prompt, nimble = choice.options.prompt, min(by_prefill, key=lambda one: one.of(1))
            return PassTime(nimble.of(prompt) - prompt * nimble.of(1), nimble.of(1))
        plain = choice.but(neighbors=0)
        alike = [seconds for one, seconds in self._engines if one == plain] or by_prefill
        slowest = max(alike, key=lambda one: one.of(len(self._longest)))
        return replace(slowest, token=slowest.token * (1 + choice.options.neighbors))


def _shorten(requests: Sequence[Tensor], prompt: int) -> Iterator[list[Tensor]]:
    """Yields requests, then fewer of them, then the first with less of its end."""
    count = len(requests)
    while count:
        yield list(requests[:count])
        count //= 2
    first = requests[0]
    for cut in range(1, _CUTS + 1):
        yield [first[: prompt + max(1, (len(first) - prompt) >> cut)]]


def _time(tap: Tap, tokens_T: Tensor) -> float:
    begun = time.perf_counter()
    tap.run(tokens_T, {})
    return time.perf_counter() - begun
