"""Alarms of a run, as its metrics tell them: disagreement, drift, NaN, equal rewards, and the like."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

Row = Mapping[str, float]

_LEARNED = ("loss", "grad_norm", "kl")
"""Last words of the names of metrics that are finite in every healthy step."""
_EQUAL_STEPS = 5
"""Steps in a row whose rewards are all equal, before a run is said to learn nothing."""
_CLAMPED = 0.25
"""Share of a step's rewards outside `reward_scaling.source` from which on that range is likely a mistake."""
_PAUSE = 10
"""Steps without an alarm after which a run notes it again."""
_NOTED = ("agreement/", "watch/")
"""Beginnings of the metrics whose alarms the monitor itself notes, with what to do."""
_LEFT_OUT = {
    "train/truncated": "{:.0%} were cut off",
    "train/no_verdict": "{:.0f} had no verdict",
    "agreement/sequences_masked": "{:.0f} were off the sampler",
}
"""Metrics that tell why responses were left out of training."""


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
    """A rule that finds something wrong in the newest steps.

    Attributes:
        metric: Lines without this metric are passed over.
        describe: Describes what is wrong in the last of the newest lines; empty where nothing is.
    """

    metric: str
    describe: Callable[[Sequence[Row]], str]


def find_alarms(rows: Sequence[Row]) -> list[Alarm]:
    """Reads lines of metrics; the alarms stand in the order of their first steps."""
    found = [alarm for rule in (*_RULES, *_not_finite(rows)) for alarm in _find_stretches(rows, rule)]
    return sorted(found, key=lambda alarm: alarm.first)


class LiveAlarms:
    """Notes alarms as a run logs its steps: each when it begins, and again only after some steps without it.

    Args:
        note: Shows a line that stays.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._rows = deque[Row](maxlen=_EQUAL_STEPS)
        self._heard: dict[str, int] = {}

    def add(self, step: int, values: Row) -> None:
        """Adds the metrics of a step."""
        self._rows.append({**values, "step": step})
        for alarm in find_alarms(list(self._rows)):
            if alarm.last == step and not alarm.metric.startswith(_NOTED):
                if step - self._heard.get(alarm.metric, -_PAUSE) >= _PAUSE:
                    self._note(f"ALARM, step {step}: {alarm.text}")
                self._heard[alarm.metric] = step


def _find_stretches(rows: Sequence[Row], rule: _Rule) -> Iterator[Alarm]:
    own = [row for row in rows if rule.metric in row]
    found: Alarm | None = None
    for end, row in enumerate(own, 1):
        step, text = int(row["step"]), rule.describe(own[max(0, end - _EQUAL_STEPS) : end])
        if text:
            found = Alarm(rule.metric, step, step, text) if found is None else replace(found, last=step)
        elif found is not None:
            yield found
            found = None
    if found is not None:
        yield found


def _describe_equal(window: Sequence[Row]) -> str:
    extremes = [row.get(f"train/reward_{end}") for row in window for end in ("min", "max")]
    if len(extremes) < 2 * _EQUAL_STEPS or extremes[0] is None or len(set(extremes)) > 1:
        return ""
    return (
        f"every reward of {_EQUAL_STEPS} steps was {extremes[0]:g}, and from equal rewards nothing is learned; read "
        "samples.jsonl, and see whether the reward, data.answer, reward.marker or sampling.max_tokens is wrong, or the "
        "task is too hard or too easy for this model"
    )


def _describe_untrained(row: Row) -> str:
    causes = [text.format(row[metric]) for metric, text in _LEFT_OUT.items() if row.get(metric)]
    return f"nothing was trained on; of the responses {', '.join(causes) or 'none has a token to learn from'}"


def _each(metric: str, breaks: Callable[[Row], bool], text: Callable[[Row], str]) -> _Rule:
    """A rule on each line for itself."""
    return _Rule(metric, lambda window: text(window[-1]) if breaks(window[-1]) else "")


_RULES = (
    _Rule("train/reward", _describe_equal),
    _each(
        "train/truncated",
        lambda row: row["train/truncated"] >= 1 and not row.get("train/cut_off_as_is"),
        lambda row: "every response was cut off by its limit, such as sampling.max_tokens",
    ),
    _each(
        "agreement/token_mult_prob_error",
        lambda row: row.get("agreement/breach", 0) > 0,
        lambda row: (
            f"sampler and learner disagree: mean e^|Δ| {row['agreement/token_mult_prob_error']:.6g}, bound "
            f"{row.get('agreement/bound', math.nan):g}"
        ),
    ),
    _each(
        "agreement/mismatches",
        lambda row: row["agreement/mismatches"] > 0,
        lambda row: (
            f"{row['agreement/mismatches']:.0f} tokens have another log-probability sampled than trained, although "
            "both sides are exact"
        ),
    ),
    _each(
        "watch/alarm",
        lambda row: row["watch/alarm"] > 0,
        lambda row: "sampler and learner drift apart: their mismatch has risen above what was usual in the first steps",
    ),
    _each(
        "train/clamped",
        lambda row: row["train/clamped"] >= _CLAMPED,
        lambda row: (
            f"{row['train/clamped']:.0%} of rewards lie outside reward_scaling.source, so different ones become equal"
        ),
    ),
    _each(
        "train/no_verdict",
        lambda row: row["train/no_verdict"] > 0 and math.isnan(row.get("train/reward", 0.0)),
        lambda row: "the reward gave no response a verdict",
    ),
    _each("train/trained_tokens", lambda row: row["train/trained_tokens"] == 0, _describe_untrained),
)


def _not_finite(rows: Sequence[Row]) -> Iterator[_Rule]:
    """A rule for each metric of learning."""
    names = dict.fromkeys(name for row in rows for name in row)
    for name in names:
        if name.rsplit("/", 1)[-1] in _LEARNED:
            yield _each(
                name,
                lambda row, name=name: not math.isfinite(row[name]),
                lambda row, name=name: f"{name} is {row[name]:g}: no number to learn from",
            )
