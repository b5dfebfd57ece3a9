"""Draws a run's curve and its agreement as one SVG, for the README: plain text, readable on light
and dark pages.

python -m benchmarks.picture RUN --out docs/pictures/first_run.svg
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from lockstep.report.agreement import AgreementSummary, summarize_agreement
from lockstep.report.held_out import HELD_OUT, MetricFigure, list_figures
from lockstep.report.log import read_metrics
from lockstep.report.picture import LEFT, RIGHT, Axes

HELD = "validation/accuracy", "validation/reward"
WIDTH = 760
HEIGHT = 438
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 11.5px; fill: #59636e }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .held { stroke: #0969da; fill: none; stroke-width: 2.2 }
  .heldfill { fill: #0969da }
  .sampled { stroke: #bc4c00; fill: none; stroke-width: 1.6 }
  .sampledfill { fill: #bc4c00 }
  .critic { stroke: #8250df; fill: none; stroke-width: 1.6 }
  .criticfill { fill: #8250df }
  .gap { stroke: #1a7f37; fill: none; stroke-width: 1.8 }
  .gapfill { fill: #1a7f37 }
  .bound { stroke: #cf222e; fill: none; stroke-width: 1.5; stroke-dasharray: 6 4 }
  .boundfill { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d }
    .held { stroke: #4493f8 } .heldfill { fill: #4493f8 } .sampled { stroke: #f0883e } .sampledfill { fill: #f0883e }
    .critic { stroke: #ab7df8 } .criticfill { fill: #ab7df8 }
    .gap { stroke: #3fb950 } .gapfill { fill: #3fb950 } .bound { stroke: #f85149 } .boundfill { fill: #f85149 }
  }
"""


@dataclass(frozen=True)
class Panel(Axes):
    """A plot with lines of style, linear or logarithmic."""

    logarithmic: bool = False

    def y(self, value: float) -> float:
        """The position of a value; values beyond the edges are drawn at them."""
        if not self.logarithmic:
            return super().y(value)
        exponents = Axes(
            self.top, self.bottom, math.log10(self.low), math.log10(self.high), self.last_step
        )
        return exponents.y(math.log10(max(value, self.low)))

    def draw_line(self, points: Sequence[MetricFigure], name: str) -> str:
        """Draws a line through points."""
        path = self.join_points((point.step, point.value) for point in points)
        return f'<polyline class="{name}" points="{path}"/>'

    def draw_level(self, value: float, label: str, name: str = "grid", beside: str = "") -> str:
        """Draws a horizontal line with a label on its left, and one on its right."""
        y = self.y(value)
        right = (
            f'<text x="{RIGHT + 8}" y="{y + 4:.1f}" class="{name}fill">{escape(beside)}</text>'
            if beside
            else ""
        )
        return (
            f'<line class="{name}" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" '
            f'text-anchor="end">{escape(label)}</text>{right}'
        )


def draw(rows: Sequence[dict[str, float]], name: str) -> str:
    """Draws the metrics of a run.

    Raises:
        ValueError: The run was not validated, or nothing was sampled in it.
    """
    summary = summarize_agreement(rows)
    metric = next((metric for metric in HELD if any(metric in row for row in rows)), None)
    if metric is None or not summary.tokens:
        raise ValueError("this picture is of a run that samples and validates, such as ppo_quiz")
    held = list_figures(rows, metric)
    last = int(max(row["step"] for row in rows))
    parts = [
        *_draw_learning(rows, held, last),
        *_draw_agreement(rows, summary, last),
        *(_write_step(step, last) for step in range(0, last + 1, max(last // 6, 1))),
    ]
    verdict = summary.sentence
    parts += [
        f'<text x="{LEFT}" y="{HEIGHT - 26 + 18 * number}">{escape(line)}</text>'
        for number, line in enumerate(textwrap.wrap(verdict, 80))
    ]
    body = "\n".join(parts)
    learned = f"{HELD_OUT[metric][0]} {held[0].value:.3f} to {held[-1].value:.3f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(f"{name}: {learned}; {verdict}")}">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _draw_learning(
    rows: Sequence[dict[str, float]], held: Sequence[MetricFigure], last: int
) -> list[str]:
    """Returns the panel of rewards, sampled and held out with intervals, and of what a critic
    explains of returns.
    """
    lines = {"sampled": ("sampled", list_figures(rows, "train/reward"))}
    explained = list_figures(rows, "critic/explained_variance")
    if explained:
        lines["critic"] = ("explained", explained)
    rewards = [figure.value for figure in (*held, *lines["sampled"][1])]
    high = max(1.0, math.ceil(2 * max(rewards)) / 2)
    panel = Panel(36, 200, min(0.0, math.floor(2 * min(rewards)) / 2), high, last)
    bars = [
        f'<line class="held" x1="{panel.x(figure.step):.1f}" x2="{panel.x(figure.step):.1f}" '
        f'y1="{panel.y(figure.low):.1f}" y2="{panel.y(figure.high):.1f}"/>'
        for figure in held
        if not math.isnan(figure.low)
    ]
    dots = [
        (
            f'<circle class="heldfill" cx="{panel.x(figure.step):.1f}" '
            f'cy="{panel.y(figure.value):.1f}" r="3.2"/>'
        )
        for figure in held
    ]
    middle = panel.y(held[-1].value)
    return [
        f'<text class="title" x="{LEFT}" y="20">what is learned</text>',
        *(
            panel.draw_level(value, f"{value:.2f}")
            for value in np.linspace(panel.low, panel.high, 5)
        ),
        *(panel.draw_line(points, name) for name, (_, points) in lines.items()),
        panel.draw_line(held, "held"),
        *bars,
        *dots,
        (
            f'<text class="heldfill" x="{RIGHT + 8}" y="{middle:.1f}">held out '
            f"{held[-1].value:.3f}</text>"
        ),
        *(
            f'<text class="{name}fill" x="{RIGHT + 8}" y="{middle + 18 * (number + 1):.1f}">'
            f"{label} {points[-1].value:.2f}</text>"
            for number, (name, (label, points)) in enumerate(lines.items())
        ),
    ]


def _draw_agreement(
    rows: Sequence[dict[str, float]], summary: AgreementSummary, last: int
) -> list[str]:
    """Returns the panel of the gap between sampler and learner, and the gap that the bound allows
    on average.
    """
    panel = Panel(252, 366, 1e-7, 1e-1, last, logarithmic=True)
    gaps = list_figures(
        [row for row in rows if row.get("agreement/tokens")], "agreement/max_abs_logprob_diff"
    )
    exact = not any(gap.value for gap in gaps)
    allowed = math.log(summary.bound)
    return [
        (
            f'<text class="title" x="{LEFT}" y="236">sampler and learner: largest |Δ '
            "log-probability| "
            "of a step</text>"
        ),
        *(
            panel.draw_level(10.0**power, "0" if exact and power == -7 else f"1e{power}")
            for power in (-7, -5, -3, -1)
        ),
        panel.draw_level(allowed, "", "bound", "bound, mean"),
        panel.draw_line(gaps, "gap"),
        f'<text class="gapfill" x="{RIGHT + 8}" y="{panel.y(gaps[-1].value) + 4:.1f}">'
        f"{'0, to the bit' if exact else f'{gaps[-1].value:.1e}'}</text>",
    ]


def _write_step(step: int, last: int) -> str:
    """Returns a label below both panels."""
    place = Panel(0, 1, 0.0, 1.0, last).x(step)
    label = str(step) if step else "step 0"
    return f'<text class="small" x="{place:.1f}" y="384" text-anchor="middle">{label}</text>'


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Draws a run's curve and its agreement as an SVG.")
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    options = parser.parse_args()
    options.out.write_text(draw(read_metrics(options.run), options.run.name), encoding="utf-8")


if __name__ == "__main__":
    main()
