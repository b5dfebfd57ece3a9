"""Alarms of a run, as its metrics tell them: disagreement, drift, NaN, equal rewards, and the like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

Row = Mapping[str, float]

_LEARNED = ("loss", "grad_norm", "kl")
"""Last words of the names of metrics that are finite in every healthy step."""
EQUAL_STEPS = 5
"""Steps in a row whose rewards are all equal, before a run is said to learn nothing."""
_CLAMPED = 0.25
"""Share of a step's rewards outside `reward_scaling.source` from which on that range is likely a mistake."""


WINDOW = 20
"""Steps, at most, over which rewards are compared with what cut-off responses earn and with the best policy's."""
_LEAST = 10
_RISE = 0.1
"""Rise of the share of responses that were cut off, between the halves of a window, that is no chance."""
_ERRORS = 4.0
"""Standard errors above the best policy's reward; a run has many windows, so 3 would be reached by chance."""


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
        lambda row: row["train/truncated"] >= 1 and not row.get("train/cut_off_as_is"),
        lambda row: "every response was cut off by its limit, such as sampling.max_tokens",
    ),
)


def find_alarms(rows: Sequence[Row]) -> list[Alarm]:
    """Reads lines of metrics; the alarms stand in the order of their first steps."""
    found = [alarm for rule in (*_RULES, *_not_finite(rows)) for alarm in _stretches(rows, rule)]
    found += [alarm for metric, describe in WINDOW_RULES.items() for alarm in _find_windows(rows, metric, describe)]
    return sorted(found, key=lambda alarm: alarm.first)


def _find_windows(rows: Sequence[Row], metric: str, describe: Callable[[Sequence[Row]], str]) -> Iterator[Alarm]:
    """Yields an alarm for each stretch of steps whose windows break a rule."""
    own = [row for row in rows if metric in row and row["step"] > 0]
    found: Alarm | None = None
    for end in range(1, len(own) + 1):
        step, text = int(own[end - 1]["step"]), describe(own[max(0, end - WINDOW) : end])
        if text:
            found = Alarm(metric, step, step, text) if found is None else replace(found, last=step)
        elif found is not None and step - found.last >= _LEAST:
            yield found
            found = None
    if found is not None:
        yield found


def describe_quitting(window: Sequence[Row]) -> str:
    """Says that being cut off may pay: its share rises with the reward, and it earns more than the worst responses do.

    Empty where it does not.
    """
    window = [row for row in window if "train/reward_min" in row]
    if len(window) < _LEAST:
        return ""
    early, late = window[: len(window) // 2], window[len(window) // 2 :]
    before, after = (_average(half, "train/truncated") for half in (early, late))
    if after - before < _RISE or _average(late, "train/reward") <= _average(early, "train/reward"):
        return ""
    cut_off = sum(row["train/truncated"] * row.get("train/reward_cut_off", 0.0) for row in late)
    others = sum(row["train/reward"] for row in late) - cut_off
    count = sum(row["train/truncated"] for row in late)
    paid, earned = cut_off / count, others / max(len(late) - count, 1e-9)
    least = _average(late, "train/reward_min")
    if paid <= (least + earned) / 2:  # as where longer thoughts pay, and those that are cut off are wrong
        return ""
    return (
        f"the share of responses that were cut off rose from {before:.0%} to {after:.0%} while the reward rose, and "
        f"they earn {paid:.3g} on average, others {earned:.3g}, and the worst {least:.3g}: the policy may be learning "
        "to be cut off; set what such a response is worth by reward.cut_off, or by cut_off_reward of the environment's "
        "class"
    )


def describe_excess(window: Sequence[Row]) -> str:
    """Says that the reward is above that of the best policy, by more than chance; empty where it is not."""
    window = [row for row in window if "train/best_reward" in row and math.isfinite(row["train/reward"])]
    if len(window) < _LEAST:
        return ""
    best, reward = window[-1]["train/best_reward"], _average(window, "train/reward")
    error = math.hypot(*(row["train/reward_error"] for row in window)) / len(window)
    if reward - best <= _ERRORS * error + 1e-6 * max(1.0, abs(best)):
        return ""
    return (
        f"the sampled reward of {len(window)} steps is {reward:.3g} on average, above {best:.3g}, which the task "
        "declares for its best policy, and by more than chance: the policy earns reward in a way that the task does "
        "not mean"
    )


WINDOW_RULES: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "train/truncated": describe_quitting,
    "train/reward": describe_excess,
}
"""Descriptions of what is wrong in the last steps, by the metric that tells it."""


def _average(rows: Sequence[Row], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


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
