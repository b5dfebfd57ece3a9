"""Draws the curves of GRPO and PPO that run_smollm2.py has measured, and prints the table of
docs/smollm2.md.

PYTHONPATH=. python scripts/draw_smollm2.py WORK/results.json --out docs/pictures/smollm2.svg
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.picture import LEFT, RIGHT, STYLE, WIDTH, Panel
from lockstep.report.held_out import MetricFigure, list_figures

HEIGHT = 448
HELD = "validation/accuracy"
FIGURES = {
    "grpo": ("held-out accuracy", HELD),
    "ppo": ("held-out accuracy", HELD),
    "reward": ("held-out pairs ranked right", "validation/acc"),
    "dpo": ("held-out pairs ranked right", "validation/acc"),
}
OWN = {"sft": ("held-out loss, nats", "loss"), "distill": ("held-out KL, nats", "kl")}

Runs = list[dict[str, Any]]


def draw_panel(runs: Runs, title: str, top: int) -> str:
    """One algorithm: sampled rewards, and held-out accuracies with intervals, a line per seed."""
    last = int(max(row["step"] for run in runs for row in run["rows"]))
    panel = Panel(top, top + 140, 0.0, 1.0, last)
    held = [list_figures(run["rows"], HELD) for run in runs]
    sampled = [list_figures(run["rows"], "train/reward") for run in runs]
    return "\n".join(
        [
            f'<text class="title" x="{LEFT}" y="{top - 16}">{title}</text>',
            *(panel.draw_level(value, f"{value:.2f}") for value in np.linspace(0, 1, 5)),
            *(panel.draw_line(points, "sampled") for points in sampled),
            *(draw_held_out(panel, points, 3 * number - 6) for number, points in enumerate(held)),
            *(write_step(panel, step) for step in range(0, last + 1, 4)),
            label_end(panel, "held", "held out", [points[-1].value for points in held], -9),
            label_end(panel, "sampled", "sampled", [points[-1].value for points in sampled], 9),
        ]
    )


def draw_held_out(panel: Panel, points: list[MetricFigure], shift: int) -> str:
    """A seed's held-out figures, a little beside those of other seeds."""
    parts = [panel.draw_line(points, "held")]
    for point in points:
        x = panel.x(point.step) + shift
        parts.append(
            f'<line class="held" x1="{x:.1f}" x2="{x:.1f}" y1="{panel.y(point.low):.1f}" '
            f'y2="{panel.y(point.high):.1f}"/>'
            f'<circle class="heldfill" cx="{x:.1f}" cy="{panel.y(point.value):.1f}" r="2.6"/>'
        )
    return "".join(parts)


def label_end(panel: Panel, name: str, label: str, values: list[float], shift: int) -> str:
    """The mean of the seeds' last figures, beside them."""
    mean = statistics.fmean(values)
    return (
        f'<text class="{name}fill" x="{RIGHT + 22}" y="{panel.y(mean) + shift + 4:.1f}">'
        f"{label} {mean:.2f}</text>"
    )


def write_step(panel: Panel, step: int) -> str:
    """The number of a step below the panel."""
    return (
        f'<text class="small" x="{panel.x(step):.1f}" y="{panel.bottom + 18}" '
        f'text-anchor="middle">{step}</text>'
    )


def draw(results: dict[str, Any]) -> str:
    """Draws both algorithms."""
    grpo, ppo = (
        [run for name, run in results.items() if name.startswith(f"{algorithm}_")]
        for algorithm in ("grpo", "ppo")
    )
    gaps = [
        row["agreement/max_abs_logprob_diff"]
        for run in (*grpo, *ppo)
        for row in run["rows"]
        if "agreement/max_abs_logprob_diff" in row
    ]
    verdict = f"sampler and learner, {len(gaps)} steps: largest |Δ log-probability| {max(gaps):g}"
    body = [
        draw_panel(
            grpo, f"SmolLM2-135M-Instruct, share of right sentences; GRPO, seeds: {len(grpo)}", 36
        ),
        draw_panel(ppo, f"PPO with a critic, seeds: {len(ppo)}", 246),
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{verdict}</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Held-out accuracy rises in each run; {verdict}">\n<style>{STYLE}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def write_row(name: str, run: dict[str, Any]) -> str:
    """A run's row of the table."""
    recipe, seed = name.split("_")
    if recipe in FIGURES:
        what, metric = FIGURES[recipe]
        figures = list_figures(run["rows"], metric)
        before, after = (
            f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in (figures[0], figures[-1])
        )
        if "sentences" in run:
            after += "; right sentences {value:.3f} [{low:.3f}, {high:.3f}]".format(
                **run["sentences"]
            )
    else:
        what, key = OWN[recipe]
        before, after = (f"{statistics.fmean(values):.3f}" for values in run[key])
        change = np.subtract(run[key][1], run[key][0])
        spread = 1.96 * change.std(ddof=1) / len(change) ** 0.5
        after += f"; change {change.mean():+.3f} ± {spread:.3f}"
    return (
        f"| `{recipe}_smollm2` | {seed} | {what} | {before} | {after} | {run['cpu_s'] / 60:.1f} |"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    options.out.write_text(draw(results), encoding="utf-8")
    print("| recipe | seed | measured | before | after | CPU minutes |")
    print("|---|---:|---|---|---|---:|")
    print("\n".join(write_row(name, run) for name, run in results.items()))


if __name__ == "__main__":
    main()
