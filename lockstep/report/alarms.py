"""Alarms of a run, as its metrics tell them: disagreement, drift, NaN, equal rewards, and the like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

Row = Mapping[str, float]

_LEARNED = ("loss", "grad_norm", "kl")
"""Last words of the names of metrics that are finite in every healthy step."""
EQUAL_STEPS = 5
"""Steps in a row whose rewards are all equal, before a run is said to learn nothing."""
_CLAMPED = 0.25
"""Share of a step's rewards outside `reward_scaling.source` from which on that range is likely a mistake."""


@dataclass(frozen=True)
class Alarm:
    """A stretch of steps in which something was wrong.

    Attributes:
        metric: The metric that tells it, and whose chart is marked.
        first: First step.
        last: Last step.
        text: A sentence on it.
    """

    metric: str
    first: int
    last: int
    text: str

    @property
    def sentence(self) -> str:
        """The steps and what was wrong in them, for a terminal."""
        when = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        return f"{when}: {self.text}"

    @property
    def plain(self) -> dict[str, str | int]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class _Rule:
    """An alarm's condition on lines of metrics.

    Attributes:
        metric: Lines without this metric are passed over.
        breaks: The condition.
        text: Describes the first line of a stretch.
        least: Lines in a row for which it has to hold.
        same: A metric that has one value in all lines of a stretch; None: none has to.
    """

    metric: str
    breaks: Callable[[Row], bool]
    text: Callable[[Row], str]
    least: int = 1
    same: str | None = None

    def continues(self, stretch: Sequence[Row], row: Row) -> bool:
        """True if a line that breaks the rule belongs to the stretch before it."""
        return self.same is None or not stretch or stretch[-1].get(self.same) == row.get(self.same)


_RULES = (
    _Rule(
        "agreement/token_mult_prob_error",
        lambda row: row.get("agreement/breach", 0) > 0,
        lambda row: (
            f"sampler and learner disagree: mean e^|Δ| {row['agreement/token_mult_prob_error']:.6g}, bound "
            f"{row.get('agreement/bound', math.nan):g}"
        ),
    ),
    _Rule(
        "agreement/mismatches",
        lambda row: row["agreement/mismatches"] > 0,
        lambda row: (
            f"{row['agreement/mismatches']:.0f} tokens have another log-probability sampled than trained, although "
            "both sides are exact"
        ),
    ),
    _Rule(
        "watch/alarm",
        lambda row: row["watch/alarm"] > 0,
        lambda row: "sampler and learner drift apart: their mismatch has risen above what was usual in the first steps",
    ),
    _Rule(
        "train/reward",
        lambda row: row.get("train/reward_min", math.nan) == row.get("train/reward_max", 0.0),
        lambda row: f"every reward was {row['train/reward']:g}, and from equal rewards nothing is learned",
        least=EQUAL_STEPS,
        same="train/reward_min",
    ),
    _Rule(
        "train/clamped",
        lambda row: row["train/clamped"] >= _CLAMPED,
        lambda row: (
            f"{row['train/clamped']:.0%} of rewards lie outside reward_scaling.source, so different ones become equal"
        ),
    ),
    _Rule(
        "train/no_verdict",
        lambda row: row["train/no_verdict"] >= 1,
        lambda row: "the reward gave no response a verdict",
    ),
    _Rule(
        "reward/tampering",
        lambda row: row["reward/tampering"] > 0,
        lambda row: f"{row['reward/tampering']:.0f} responses attempted to cheat their tests",
    ),
    _Rule(
        "train/truncated",
        lambda row: row["train/truncated"] >= 1,
        lambda row: "every response was cut off by its limit, such as sampling.max_tokens",
    ),
)


def find_alarms(rows: Sequence[Row]) -> list[Alarm]:
    """Reads lines of metrics; the alarms stand in the order of their first steps."""
    found = [alarm for rule in (*_RULES, *_not_finite(rows)) for alarm in _stretches(rows, rule)]
    return sorted(found, key=lambda alarm: alarm.first)


def _not_finite(rows: Sequence[Row]) -> Iterator[_Rule]:
    """A rule for each metric of learning."""
    names = dict.fromkeys(name for row in rows for name in row)
    for name in names:
        if name.rsplit("/", 1)[-1] in _LEARNED:
            yield _Rule(
                name,
                lambda row, name=name: not math.isfinite(row[name]),
                lambda row, name=name: f"{name} is {row[name]:g}: no number to learn from",
            )


def _stretches(rows: Sequence[Row], rule: _Rule) -> Iterator[Alarm]:
    stretch: list[Row] = []
    for row in rows:
        if rule.metric not in row:
            continue
        broken = rule.breaks(row)
        if broken and rule.continues(stretch, row):
            stretch.append(row)
            continue
        yield from _alarm(stretch, rule)
        stretch = [row] if broken else []
    yield from _alarm(stretch, rule)


def _alarm(stretch: Sequence[Row], rule: _Rule) -> Iterator[Alarm]:
    if len(stretch) >= rule.least:
        first, last = (int(row["step"]) for row in (stretch[0], stretch[-1]))
        yield Alarm(rule.metric, first, last, rule.text(stretch[0]))
