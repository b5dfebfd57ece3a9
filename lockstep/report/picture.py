"""Curves as SVG: axes, which benchmarks share, and a run's curve for notebooks, whose text has the
color of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from lockstep.report.held_out import HELD_OUT, MetricFigure, list_figures

LEFT = 64
RIGHT = 640


@dataclass(frozen=True)
class Axes:
    """A plot's edges: their positions on the page, their values, and the last step."""

    top: int
    bottom: int
    low: float
    high: float
    last_step: int

    def x(self, step: float) -> float:
        """The position of a step."""
        return LEFT + (RIGHT - LEFT) * step / self.last_step

    def y(self, value: float) -> float:
        """The position of a value; values beyond the edges are drawn at them."""
        inside = min(max(value, self.low), self.high)
        share = (inside - self.low) / ((self.high - self.low) or 1.0)
        return self.bottom - (self.bottom - self.top) * share

    def join_points(self, points: Iterable[tuple[float, float]]) -> str:
        """The points of a line, from steps and values."""
        return " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in points)


def draw_headline(rows: Sequence[Mapping[str, float]]) -> str:
    """Draws the first headline metric with several values; empty if there is none.

    Metrics on held-out rows take precedence over training metrics.
    """
    labels = {metric: label for metric, (label, _) in HELD_OUT.items()}
    for metric, label in (
        labels | {"train/reward": "sampled reward", "train/loss": "loss"}
    ).items():
        series = list_figures(rows, metric)
        if len(series) > 1:
            return _draw_curve(f"{label} over steps", series)
    return ""


def _draw_curve(title: str, series: Sequence[MetricFigure]) -> str:
    """Draws the values as a line, and their 95 % intervals as a band."""
    banded = [figure for figure in series if math.isfinite(figure.low + figure.high)]
    values = [figure.value for figure in series]
    low = min(values + [figure.low for figure in banded])
    high = max(values + [figure.high for figure in banded])
    axes = Axes(30, 175, low, high, series[-1].step)
    band = [(figure.step, figure.high) for figure in banded]
    band += [(figure.step, figure.low) for figure in reversed(banded)]
    line = axes.join_points((figure.step, figure.value) for figure in series)
    return f"""<svg viewBox="0 0 650 200" width="650" role="img" fill="currentColor"
 font-family="sans-serif" font-size="12"><text x="{LEFT}" y="16">{escape(title)}</text>
<text x="58" y="34" text-anchor="end">{high:.3g}</text>
<text x="58" y="175" text-anchor="end">{low:.3g}</text>
<text x="{LEFT}" y="192">0</text>
<text x="{RIGHT}" y="192" text-anchor="end">{series[-1].step}</text>
<polygon points="{axes.join_points(band)}" fill="#4493f8" opacity="0.2"/>
<polyline points="{line}" fill="none" stroke="#4493f8" stroke-width="2"/></svg>"""
