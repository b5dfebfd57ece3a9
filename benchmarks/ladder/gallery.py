"""The curves of a rung as one SVG: a line for each arm, the mean over its seeds.

python -m benchmarks.ladder --show --page docs/ladder.md
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.ladder.results import Result, read_results
from benchmarks.ladder.rung import Rung

Curve = list[tuple[int, float]]
LEFT, TOP, WIDTH, HEIGHT = 52, 28, 440, 200
COLORS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#bf3989", "#57606a", "#1b7c83")
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #59636e } .title { font-weight: 600; fill: #1f2328 }
  .grid { stroke: #d1d9e0 } .curve { fill: none; stroke-width: 1.9 }
  @media (prefers-color-scheme: dark) { text { fill: #9198a1 } .title { fill: #f0f6fc } .grid { stroke: #3d444d } }
"""


def write_pictures(folder: Path, rungs: Sequence[Rung]) -> None:
    """Writes the picture of each rung that has been measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for rung in rungs:
        (folder / f"{rung.name}.svg").write_text(draw(rung, read_results(rung.name)), encoding="utf-8")


def average(results: Sequence[Result]) -> Curve:
    """The mean over seeds at each step that all of them have."""
    seeds = [dict(zip(one.steps, one.curve, strict=True)) for one in results]
    common = sorted(set(seeds[0]).intersection(*seeds)) if seeds else []
    return [(step, sum(seed[step] for seed in seeds) / len(seeds)) for step in common]


def draw(rung: Rung, results: Sequence[Result]) -> str:
    """Draws the arms of a rung."""
    curves = {name: average([one for one in results if one.key.arm == name]) for name in rung.arms}
    curves = {name: curve for name, curve in curves.items() if curve}
    values = [value for curve in curves.values() for _, value in curve]
    low, high = min(0.0, *values), max(rung.optimum or 0.0, *values)
    last = max(step for curve in curves.values() for step, _ in curve)
    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(rung.metric)}</text>']
    for share in (0.0, 0.5, 1.0):
        y, x = TOP + HEIGHT * (1 - share), LEFT + WIDTH * share
        parts += [
            f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{low + (high - low) * share:.2f}</text>',
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{round(last * share)}</text>',
        ]
    for number, (name, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        points = " ".join(
            f"{LEFT + WIDTH * step / last:.1f},{TOP + HEIGHT * (1 - (value - low) / (high - low)):.1f}"
            for step, value in curve
        )
        y, x = TOP + 12 + 18 * number, LEFT + WIDTH + 16
        parts += [
            f'<polyline class="curve" stroke="{color}" points="{points}"/>',
            f'<line class="curve" stroke="{color}" x1="{x}" x2="{x + 20}" y1="{y}" y2="{y}"/>',
            f'<text x="{x + 26}" y="{y + 4}">{escape(name)}</text>',
        ]
    height = max(TOP + HEIGHT + 28, TOP + 24 + 18 * len(curves))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" role="img" '
        f'aria-label="{escape(rung.metric)} over steps, {len(curves)} arms">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )
