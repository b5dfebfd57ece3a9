"""A curve of a run as an SVG, for notebooks; its text has the color of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from lockstep.report.held_out import HELD_OUT, MetricFigure, list_figures

_WIDTH = 560
_HEIGHT = 200
_LEFT = 60
_TOP = 30
_BOTTOM = 175


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
    first = series[0].step
    span = max(series[-1].step - first, 1)

    def place(step: int, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 10) * (step - first) / span
        share = (value - low) / ((high - low) or 1.0)
        return f"{x:.1f},{_BOTTOM - (_BOTTOM - _TOP) * share:.1f}"

    band = [place(figure.step, figure.high) for figure in banded]
    band += [place(figure.step, figure.low) for figure in reversed(banded)]
    line = [place(figure.step, figure.value) for figure in series]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" fill="currentColor" '
        f'font-family="sans-serif" font-size="12"><text x="{_LEFT}" y="16">{escape(title)}</text>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{_LEFT - 6}" y="{_BOTTOM}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{first}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 8}" text-anchor="end">{series[-1].step}</text>'
        f'<polygon points="{" ".join(band)}" fill="#4493f8" opacity="0.2"/>'
        f'<polyline points="{" ".join(line)}" fill="none" stroke="#4493f8" stroke-width="2"/></svg>'
    )
