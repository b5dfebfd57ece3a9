"""One process alone, for `benchmarks.logprobs`: with the head's matrix product, and how time and memory grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.growth_plot import Curve, Panel, draw_panels
from benchmarks.logprobs_measure import Figures, Work, measure_work, products
from lockstep_logprobs.hidden import hidden_logprobs
from lockstep_logprobs.vocab import vocab_logprobs

HIDDEN = 256
HEAD_TOKENS, HEAD_VOCAB = 1024, 32_768
SIZES = (1, 2, 4, 8, 16, 32)
LEAST_TOKENS, LEAST_VOCAB = 1024, 8192
FIXED_TOKENS, FIXED_VOCAB = 512, 4096

COLOURS = {"Lockstep": "#1f6feb", "naive": "#b35900"}
DOTTED = {"hidden states": False, "logits": True}
LEAST_MIB = 1.0
"""Least memory in the plot: below it, pages come and go by the hundred."""


@dataclass(frozen=True)
class Point:
    """One measurement of the growth.

    Attributes:
        path: Input of the scoring: "hidden states" or "logits".
        way: "Lockstep" or "naive".
        over: The growing dimension: "T", the tokens, or "V", the vocabulary.
        size: Its size.
        seconds: Seconds of forward and backward.
        mib: Peak above inputs.
        own_mib: Peak above inputs and their gradients.
    """

    path: str
    way: str
    over: str
    size: int
    seconds: float
    mib: float
    own_mib: float


def head(device: torch.device, repeats: int) -> dict[str, Figures]:
    """Log-probabilities from hidden states on one process: three ways, and the matrix products alone."""
    work = from_hidden(HEAD_TOKENS, HEAD_VOCAB, device)
    states, weight = work.leaves
    target = _tokens(HEAD_TOKENS, HEAD_VOCAB, device)
    fused = "linear_cross_entropy, chunked"
    options = nn.LinearCrossEntropyOptions()
    ways = {
        **work.ways,
        fused: lambda: [-F.linear_cross_entropy(states, weight, target, reduction="none", options=options)],
    }
    return measure_work(Work(work.leaves, ways, products=products(HEAD_TOKENS, weight)), device, repeats)


def from_hidden(tokens: int, vocab: int, device: torch.device) -> Work:
    """Scoring from hidden states; the naive way makes all logits."""
    target = _tokens(tokens, vocab, device)
    states = torch.randn(tokens, HIDDEN, device=device).requires_grad_()
    weight = torch.randn(vocab, HIDDEN, device=device).mul_(HIDDEN**-0.5).requires_grad_()
    ways = {
        "Lockstep": lambda: [hidden_logprobs(states, weight, target[:, None])[0][:, 0]],
        "naive": lambda: [_naive(states @ weight.t(), target)],
    }
    return Work([states, weight], ways)


def from_logits(tokens: int, vocab: int, device: torch.device) -> Work:
    """Scoring from existing logits."""
    target = _tokens(tokens, vocab, device)
    logits = torch.randn(tokens, vocab, device=device).requires_grad_()
    ways = {
        "Lockstep": lambda: [vocab_logprobs(logits, target[:, None])[0][:, 0]],
        "naive": lambda: [_naive(logits, target)],
    }
    return Work([logits], ways)


def _naive(logits: Tensor, target: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]


def _tokens(tokens: int, vocab: int, device: torch.device) -> Tensor:
    return torch.randint(vocab, (tokens,), generator=torch.Generator(device).manual_seed(1), device=device)


def growth(device: torch.device, repeats: int) -> Iterator[Point]:
    """Points over T and over V, as they are measured."""
    shapes = [("T", size * LEAST_TOKENS, FIXED_VOCAB) for size in SIZES]
    shapes += [("V", FIXED_TOKENS, size * LEAST_VOCAB) for size in SIZES]
    for over, tokens, vocab in shapes:
        for path, build in {"hidden states": from_hidden, "logits": from_logits}.items():
            size = tokens if over == "T" else vocab
            for way, figures in measure_work(build(tokens, vocab, device), device, repeats).items():
                held = figures.total_bytes
                yield Point(
                    path, way, over, size, figures.seconds, held / 2**20, (held - figures.gradient_bytes) / 2**20
                )


def plot(points: list[Point], out: Path) -> None:
    """Draws time and memory over T and over V into an SVG file."""
    titles = {"T": f"V = {FIXED_VOCAB:,}, H = {HIDDEN}", "V": f"T = {FIXED_TOKENS:,}, H = {HIDDEN}"}
    rows: list[tuple[str, Callable[[Point], float]]] = [
        ("CPU seconds", lambda point: point.seconds),
        ("MiB above inputs", lambda point: point.mib),
        ("MiB above inputs and gradients", lambda point: max(point.own_mib, LEAST_MIB)),
    ]
    panels = [
        [_panel(points, over, titles[over] if i == 0 else "", title, figure) for over in titles]
        for i, (title, figure) in enumerate(rows)
    ]
    out.write_text(draw_panels(panels))


def _panel(points: list[Point], over: str, title: str, y_title: str, figure: Callable[[Point], float]) -> Panel:
    """A figure of the points over T or over V."""
    grown = [point for point in points if point.over == over]
    curves = []
    for path, way in product(DOTTED, COLOURS):
        own = [point for point in grown if (point.path, point.way) == (path, way)]
        sizes, values = [point.size for point in own], [figure(point) for point in own]
        curves.append(Curve(f"{way}, from {path}", COLOURS[way], DOTTED[path], sizes, values))
    texts = [(float(size), f"{size // 1024} K") for size in sorted({point.size for point in grown})]
    return Panel(title, over, y_title, texts, curves)
