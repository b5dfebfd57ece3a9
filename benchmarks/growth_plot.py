"""A drawing of measurements that grow: panels with logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 900, 900
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 50, 110
_BETWEEN_X, _BETWEEN_Y = 70, 45


@dataclass(frozen=True)
class Curve:
    """A curve of a panel.

    Attributes:
        name: Text in the legend.
        color: CSS color.
        is_dotted: Whether its line is.
        x: Places.
        y: Values, all positive.
    """

    name: str
    color: str
    is_dotted: bool
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """A panel of a drawing, with the text above it and at its axes."""

    title: str
    x_title: str
    y_title: str
    x_texts: Sequence[tuple[float, str]]
    curves: Sequence[Curve]


def draw_panels(rows: Sequence[Sequence[Panel]]) -> str:
    """Draws panels row by row; the curves of the first are named below all."""
    columns = len(rows[0])
    width = (WIDTH - _LEFT - _RIGHT - (columns - 1) * _BETWEEN_X) / columns
    height = (HEIGHT - _TOP - _BOTTOM - (len(rows) - 1) * _BETWEEN_Y) / len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            left, top = _LEFT + j * (width + _BETWEEN_X), _TOP + i * (height + _BETWEEN_Y)
            parts += [f'<g transform="translate({left:.1f} {top:.1f})">', *_panel(panel, width, height), "</g>"]
    return "\n".join([*parts, *_legend(rows[0][0].curves), "</svg>\n"])


def _panel(panel: Panel, width: float, height: float) -> list[str]:
    x_low, x_high = (end(value for value, _ in panel.x_texts) for end in (min, max))
    values = [value for curve in panel.curves for value in curve.y]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high += low == high

    def place_x(value: float) -> float:
        return width * math.log(value / x_low) / (math.log(x_high / x_low) or 1)

    def place_y(value: float) -> float:
        return height * (high - math.log10(value)) / (high - low)

    parts = [f'<text x="{width / 2:.1f}" y="-14" text-anchor="middle">{escape(panel.title)}</text>']
    for power in range(low, high + 1):
        y = place_y(10.0**power)
        parts.append(f'<path d="M0 {y:.1f}H{width:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for value, text in panel.x_texts:
        parts.append(f'<text x="{place_x(value):.1f}" y="{height + 16:.1f}" text-anchor="middle">{escape(text)}</text>')
    for curve in panel.curves:
        points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in zip(curve.x, curve.y, strict=True))
        parts.append(f'<polyline points="{points}" {_stroke(curve)}/>')
    parts.append(f'<text x="{width / 2:.1f}" y="{height + 33:.1f}" text-anchor="middle">{escape(panel.x_title)}</text>')
    turned = f'transform="translate(-52 {height / 2:.1f}) rotate(-90)" text-anchor="middle"'
    return [*parts, f"<text {turned}>{escape(panel.y_title)}</text>"]


def _stroke(curve: Curve) -> str:
    dashes = ' stroke-dasharray="2 4"' if curve.is_dotted else ""
    return f'fill="none" stroke="{curve.color}" stroke-width="2"{dashes}'


def _legend(curves: Sequence[Curve]) -> list[str]:
    """Two names in a line."""
    parts: list[str] = []
    for i, curve in enumerate(curves):
        x, y = _LEFT + (i % 2) * 320, HEIGHT - 44 + (i // 2) * 20
        parts.append(
            f'<path d="M{x} {y}h36" {_stroke(curve)}/><text x="{x + 44}" y="{y + 4}">{escape(curve.name)}</text>'
        )
    return parts
