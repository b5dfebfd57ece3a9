"""How the time and memory of generating grow with response length, vocabulary and rows, beside `transformers`.

    python -m benchmarks.generate_growth          # draws benchmarks/results/generate_growth.svg

Responses of equal length by the model of 0.6 M parameters, at temperature 1 and on one thread; CPU milliseconds per
token, and the MB that a call adds at most. Of the three dimensions, two stay as they are while one grows.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.generate_sides import Case, Lockstep, Transformers, build_lm, prepare
from benchmarks.growth_plot import Curve, Panel, draw_panels
from benchmarks.harness import RESULTS, MemoryGrowth, environment, measure_interleaved
from lockstep.samplers.torch.sampler import TorchSampler

SIZE = "default"
TOKENS, VOCAB, ROWS = 32, 1024, 32
GROWING = {
    "response length T": (16, 32, 64, 128, 256),
    "vocabulary V": (1024, 4096, 16384, 32768, 131072),
    "rows B": (1, 4, 16, 64, 256),
}
COLORS = {"Lockstep, exact": "#1f6feb", "Lockstep, inexact": "#1a7f37", "transformers": "#b35900"}
LEAST_MB = 1.0
"""Least memory in the plot: below it, pages come and go by the hundred."""


@dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes:
        side: The program.
        over: The growing dimension.
        size: Its size.
        ms: CPU milliseconds per token.
        mb: MB that a call adds at most.
    """

    side: str
    over: str
    size: int
    ms: float
    mb: float


def measure_point(over: str, size: int, repeats: int) -> list[Point]:
    """Measures all sides in turn, with one dimension grown to a size."""
    tokens, vocab, rows = (
        size if over == name else usual for name, usual in zip(GROWING, (TOKENS, VOCAB, ROWS), strict=True)
    )
    lm, case = build_lm(SIZE, vocab), Case.of(SIZE, "equal", responses=rows, max_tokens=tokens)
    sides = [
        *(Lockstep(TorchSampler(prepare(copy.deepcopy(lm), exact), rows), case) for exact in (True, False)),
        Transformers(lm, case),
    ]
    times = measure_interleaved(sides, repeats)
    points: list[Point] = []
    for name, side, taken in zip(COLORS, sides, times, strict=True):
        grown = MemoryGrowth()
        side()
        points.append(Point(name, over, size, 1e3 * taken.cpu_median_s / (rows * tokens), grown.peak() / 1e6))
    return points


def draw(points: Sequence[Point]) -> str:
    """Draws time and memory over each dimension that was measured, as SVG."""
    grown = list(dict.fromkeys(point.over for point in points))
    times = [_panel(points, over, _title(over), "CPU ms per token", lambda point: point.ms) for over in grown]
    memory = [_panel(points, over, "", "MB", lambda point: max(point.mb, LEAST_MB)) for over in grown]
    return draw_panels([times, memory])


def _panel(points: Sequence[Point], over: str, title: str, y_title: str, figure: Callable[[Point], float]) -> Panel:
    """A figure of the points over a dimension."""
    own = [point for point in points if point.over == over]
    curves = [
        Curve(side, color, False, [p.size for p in own if p.side == side], [figure(p) for p in own if p.side == side])
        for side, color in COLORS.items()
    ]
    sizes = sorted({point.size for point in own})
    texts = [(float(size), f"{size // 1024} K" if size >= 1024 else str(size)) for size in sizes]
    return Panel(title, over, y_title, texts, curves)


def _title(over: str) -> str:
    """The dimensions that stay as they are."""
    usual = zip(("T", "V", "B"), GROWING, (TOKENS, VOCAB, ROWS), strict=True)
    return ", ".join(f"{letter} = {size}" for letter, name, size in usual if name != over)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", nargs="+", default=list(GROWING), choices=GROWING, help="dimensions that grow")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repetitions")
    parser.add_argument("--out", type=Path, default=RESULTS / "generate_growth.svg", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(environment())
    points: list[Point] = []
    for over, size in ((chosen, size) for chosen in args.over for size in GROWING[chosen]):
        points += measure_point(over, size, args.repeats)
        figures = "; ".join(f"{p.side} {p.ms:.3f} ms, {p.mb:.0f} MB" for p in points[-len(COLORS) :])
        print(f"{over} {size}: {figures}", flush=True)
    args.out.write_text(draw(points))
    print(args.out)


if __name__ == "__main__":
    main()
