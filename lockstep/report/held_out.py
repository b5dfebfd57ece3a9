"""Figures of a run as text: value, 95 % interval, and the best step on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

BetterDirection = Literal["higher", "lower"]

HELD_OUT: dict[str, tuple[str, BetterDirection]] = {
    "validation/accuracy": ("held-out accuracy", "higher"),
    "validation/reward": ("held-out reward", "higher"),
    "validation/loss": ("held-out loss", "lower"),
    "validation/acc": ("held-out ranking accuracy", "higher"),
}
"""Metrics that measure a model, each with its label and its better direction."""


@dataclass(frozen=True)
class MetricFigure:
    """A metric at one step.

    Attributes:
        low: Lower end of its 95 % interval; NaN if none was logged.
        high: Upper end.
    """

    step: int
    value: float
    low: float = math.nan
    high: float = math.nan

    def format_value(self, form: str = ".3f") -> str:
        """The value, with its interval in brackets if it has one."""
        if math.isnan(self.low + self.high):
            ends = ""
        else:
            ends = f" [{self.low:{form}}, {self.high:{form}}]"
        return f"{self.value:{form}}{ends}"


def list_figures(rows: Sequence[Mapping[str, float]], metric: str) -> list[MetricFigure]:
    """The finite values of a metric over lines of metrics, in order."""
    figures: list[MetricFigure] = []
    for row in rows:
        if math.isfinite(row.get(metric, math.nan)):
            low = row.get(f"{metric}_low", math.nan)
            high = row.get(f"{metric}_high", math.nan)
            figures.append(MetricFigure(int(row.get("step", 0)), row[metric], low, high))
    return figures


def find_best(series: Sequence[MetricFigure], better: BetterDirection) -> MetricFigure:
    """The best of some figures; the earliest wins ties."""
    sign = 1 if better == "higher" else -1
    return max(series, key=lambda figure: sign * figure.value)


TWINS = ("val/loss", "val/acc", "val/generated_rewards")
"""Self-rewarding metrics on held-out prompts, shown next to the headlines."""


_ALSO = {
    "validation/judge_exact": "judge accuracy on known scores",
    "validation/meta_judge_accuracy": "meta-judge accuracy on known winners",
    "train/reward": "sampled reward",
    "train/shaped_reward": "objective (shaped reward − β·KL)",
    "train/kl": "KL from the reference per token",
    "train/response_length": "response length",
    "train/turns": "turns per episode",
    "train/truncated": "truncated responses",
    "train/loss": "loss",
    "policy/loss": "loss",
    "critic/explained_variance": "explained variance of the critic",
}
"""Additional metrics that summarize a run."""


def list_headlines(rows: Sequence[Mapping[str, float]]) -> list[tuple[str, str]]:
    """Labels and texts that summarize metrics: first, last, and best on held-out rows."""
    lines: list[tuple[str, str]] = []
    for metric, (label, better) in HELD_OUT.items():
        series = list_figures(rows, metric)
        if series:
            lines.append((label, from_to(series)))
        if len(series) > 1:
            found = find_best(series, better)
            lines.append(("  best", f"{found.format_value()} at step {found.step}"))
    rewarded = list_figures(rows, "train/reward")
    cut_off = any(row.get("train/truncated") for row in rows)
    # the loss is a surrogate of rewards
    hidden = {"policy/loss": bool(rewarded), "train/truncated": not cut_off}
    for metric, label in _ALSO.items():
        series = list_figures(rows, metric)
        if series and not hidden.get(metric):
            lines.append((label, from_to(series)))
        if metric == "train/reward":
            names = set[str]().union(*rows)
            for name in sorted(name for name in names if name.startswith("reward/")):
                part = f"  {name.partition('/')[2]}"
                lines.append((part, from_to(list_figures(rows, name))))
    return lines


def from_to(series: Sequence[MetricFigure]) -> str:
    """The first and the last of some figures."""
    return f"{series[0].format_value()} → {series[-1].format_value()}"


def describe_validation(step: int, values: Mapping[str, float]) -> str | None:
    """Describes a validation on one line; None if it has no headline metric.

    Args:
        step: Number of finished steps.
        values: Its metrics.
    """
    labels = {metric: label for metric, (label, _) in HELD_OUT.items()}
    parts: list[str] = []
    for metric in (*labels, *TWINS):
        for figure in list_figures([values], metric):
            parts.append(f"{labels.get(metric, metric)} {figure.format_value()}")
    if parts:
        return f"after step {step}: {', '.join(parts)}"
    return None
