"""Alarms from a run's metrics: disagreement, drift, NaN, equal rewards, and similar."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

MetricRow = Mapping[str, float]

_LEARNED = ("loss", "grad_norm", "kl")
"""Last words of metric names that are finite in every healthy step."""
_EQUAL_STEPS = 5
"""Number of consecutive steps with all-equal rewards that raises an alarm."""
_CLAMPED = 0.25
"""Share of rewards outside `reward_scaling.source` above which the range is likely wrong."""
_WINDOW = 20
"""Maximum number of steps that a rule reads, such as to compare truncated responses."""
_LEAST = 10
"""Steps that a comparison needs; also the healthy steps after which an alarm is noted again."""
_RISE = 0.1
"""Significant rise of the share of truncated responses between a window's halves."""
_ERRORS = 4.0
"""Standard errors above the best policy's reward; with many windows, 3 would occur by chance."""
_NOTED = ("agreement/", "watch/")
"""Prefixes of metrics whose alarms the monitor itself reports, with advice."""
_LEFT_OUT = {
    "train/truncated": "{:.0%} were truncated",
    "train/no_verdict": "{:.0f} had no verdict",
    "agreement/sequences_masked": "{:.0f} were masked for sampler mismatch",
}
"""Metrics that explain why responses were left out of training."""


@dataclass(frozen=True)
class RunAlarm:
    """The steps affected by one problem.

    Attributes:
        metric: The metric that shows it, whose chart is marked.
        steps: The steps, in order.
        text: A sentence about the last of them.
    """

    metric: str
    steps: tuple[int, ...]
    text: str

    @property
    def sentence(self) -> str:
        """The steps and the problem."""
        first = self.steps[0]
        last = self.steps[-1]
        count = len(self.steps)
        if count == 1:
            when = f"step {first}"
        elif count > last - first:
            when = f"steps {first} to {last}"
        else:
            when = f"{count} steps between {first} and {last}"
        return f"{when}: {self.text}"


@dataclass(frozen=True)
class _AlarmRule:
    """A rule that finds a problem in the newest steps.

    Attributes:
        metric: The metric to read; lines without it are ignored.
        describe: Describes the problem in the last of some lines; empty if there is none.
    """

    metric: str
    describe: Callable[[Sequence[MetricRow]], str]


def find_alarms(rows: Sequence[MetricRow]) -> list[RunAlarm]:
    """Finds alarms in lines of metrics, one per rule, ordered by first step."""
    rules = list(_RULES)
    for name in dict.fromkeys(chain.from_iterable(rows)):
        if name.rsplit("/", 1)[-1] in _LEARNED:
            rules.append(
                _build_line_rule(
                    name,
                    lambda row, name=name: not math.isfinite(row[name]),
                    lambda row, name=name: f"{name} is {row[name]:g}, which is not finite",
                )
            )
    found: list[RunAlarm] = []
    for rule in rules:
        own = [row for row in rows if rule.metric in row]
        texts: dict[int, str] = {}
        for end, row in enumerate(own, 1):
            text = rule.describe(own[max(0, end - _WINDOW) : end])
            if text:
                texts[int(row["step"])] = text
        if texts:
            found.append(RunAlarm(rule.metric, tuple(texts), text=list(texts.values())[-1]))
    return sorted(found, key=lambda alarm: alarm.steps)


class LiveAlarms:
    """Reports alarms while a run logs: once at the start, and again only after healthy steps.

    Args:
        note: Shows a permanent line.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._rows = deque[MetricRow](maxlen=_WINDOW)
        self._heard: dict[str, int] = {}

    def add_step(self, step: int, values: MetricRow) -> None:
        """Adds the metrics of a step."""
        self._rows.append({**values, "step": step})
        for alarm in find_alarms(list(self._rows)):
            if alarm.steps[-1] == step and not alarm.metric.startswith(_NOTED):
                if step - self._heard.get(alarm.metric, -_LEAST) >= _LEAST:
                    self._note(f"ALARM, step {step}: {alarm.text}")
                self._heard[alarm.metric] = step


def _describe_equal(window: Sequence[MetricRow]) -> str:
    extremes: list[float | None] = []
    for row in window[-_EQUAL_STEPS:]:
        extremes += [row.get("train/reward_min"), row.get("train/reward_max")]
    if len(extremes) < 2 * _EQUAL_STEPS or extremes[0] is None or len(set(extremes)) > 1:
        return ""
    return (
        f"all rewards in {_EQUAL_STEPS} steps were {extremes[0]:g}, which gives no learning "
        "signal; read samples.jsonl and check the reward, data.answer, reward.marker, "
        "sampling.max_tokens and the difficulty of the task"
    )


def _describe_untrained(row: MetricRow) -> str:
    causes = [text.format(row[metric]) for metric, text in _LEFT_OUT.items() if row.get(metric)]
    return f"no response was trained on: {', '.join(causes) or 'none has trainable tokens'}"


def _describe_quitting(window: Sequence[MetricRow]) -> str:
    """Reports that the policy may profit from truncated responses; empty if it does not.

    It may if the truncated share and the reward rise together, and truncated responses earn more
    than the worst responses.
    """
    window = [row for row in window if "train/reward_min" in row]
    if len(window) < _LEAST:
        return ""
    early = window[: len(window) // 2]
    late = window[len(window) // 2 :]
    before, after = (_average_metric(half, "train/truncated") for half in (early, late))
    if after - before < _RISE or _average_metric(late, "train/reward") <= _average_metric(
        early, "train/reward"
    ):
        return ""
    cut_off = sum(row["train/truncated"] * row.get("train/reward_cut_off", 0.0) for row in late)
    others = sum(row["train/reward"] for row in late) - cut_off
    count = sum(row["train/truncated"] for row in late)
    paid = cut_off / count
    earned = others / max(len(late) - count, 1e-9)
    least = _average_metric(late, "train/reward_min")
    # for example, longer thoughts pay, and truncated ones are wrong
    if paid <= (least + earned) / 2:
        return ""
    return (
        f"truncated responses rose from {before:.0%} to {after:.0%} while the reward rose; their "
        f"mean reward is {paid:.3g}, that of other responses {earned:.3g}, the lowest "
        f"{least:.3g}: the policy may be learning to be truncated; set the reward of a truncated "
        "response with reward.cut_off, or cut_off_reward of the environment's class"
    )


def _describe_excess(window: Sequence[MetricRow]) -> str:
    """Reports a reward above the best policy's by more than chance; empty if there is none."""
    window = [
        row for row in window if "train/best_reward" in row and math.isfinite(row["train/reward"])
    ]
    if len(window) < _LEAST:
        return ""
    best = window[-1]["train/best_reward"]
    reward = _average_metric(window, "train/reward")
    error = math.hypot(*(row["train/reward_error"] for row in window)) / len(window)
    if reward - best <= _ERRORS * error + 1e-6 * max(1.0, abs(best)):
        return ""
    return (
        f"the mean sampled reward over {len(window)} steps is {reward:.3g}, significantly above "
        f"the task's declared best of {best:.3g}: the policy is likely hacking the reward"
    )


def _build_line_rule(
    metric: str, breaks: Callable[[MetricRow], bool], text: Callable[[MetricRow], str]
) -> _AlarmRule:
    """A rule that reads each line separately."""
    return _AlarmRule(metric, lambda window: text(window[-1]) if breaks(window[-1]) else "")


_RULES = (
    _AlarmRule("train/reward", _describe_equal),
    _AlarmRule("train/reward", _describe_excess),
    _AlarmRule("train/truncated", _describe_quitting),
    _build_line_rule(
        "train/truncated",
        lambda row: row["train/truncated"] >= 1 and not row.get("train/cut_off_as_is"),
        lambda row: "every response was truncated by a limit such as sampling.max_tokens",
    ),
    _build_line_rule(
        "agreement/token_mult_prob_error",
        lambda row: row.get("agreement/breach", 0) > 0,
        lambda row: (
            "sampler and learner disagree: mean e^|Δ| "
            f"{row['agreement/token_mult_prob_error']:.6g}, bound "
            f"{row.get('agreement/bound', math.nan):g}"
        ),
    ),
    _build_line_rule(
        "agreement/mismatches",
        lambda row: row["agreement/mismatches"] > 0,
        lambda row: (
            f"{row['agreement/mismatches']:.0f} tokens have different log-probabilities in "
            "sampler and learner, although both are exact"
        ),
    ),
    _build_line_rule(
        "watch/alarm",
        lambda row: row["watch/alarm"] > 0,
        lambda row: (
            "sampler and learner are drifting apart: their mismatch rose above its level in the "
            "first steps"
        ),
    ),
    _build_line_rule(
        "train/clamped",
        lambda row: row["train/clamped"] >= _CLAMPED,
        lambda row: (
            f"{row['train/clamped']:.0%} of rewards lie outside reward_scaling.source and are "
            "clamped to its ends"
        ),
    ),
    _build_line_rule(
        "train/no_verdict",
        lambda row: row["train/no_verdict"] > 0 and math.isnan(row.get("train/reward", 0.0)),
        lambda row: "the reward returned no verdict for any response",
    ),
    _build_line_rule(
        "train/trained_tokens", lambda row: row["train/trained_tokens"] == 0, _describe_untrained
    ),
)


def _average_metric(rows: Sequence[MetricRow], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)
