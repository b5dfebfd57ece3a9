"""One process alone, for `benchmarks.logprobs`: with the head's matrix product, and how time and memory grow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import plotly.graph_objects as go
import torch
from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.logprobs_measure import Figures, Work, measure_work, products
from lockstep_logprobs.hidden import hidden_logprobs
from lockstep_logprobs.vocab import vocab_logprobs

HIDDEN = 256
HEAD_TOKENS, HEAD_VOCAB = 1024, 32_768
SIZES = (1, 2, 4, 8, 16, 32)
LEAST_TOKENS, LEAST_VOCAB = 1024, 8192
FIXED_TOKENS, FIXED_VOCAB = 512, 4096

COLOURS = {"Lockstep": "#1f6feb", "naive": "#b35900"}
DASHES = {"hidden states": "solid", "logits": "dot"}
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
    titles = [f"V = {FIXED_VOCAB:,}, H = {HIDDEN}", f"T = {FIXED_TOKENS:,}, H = {HIDDEN}"]
    figure = make_subplots(3, 2, column_titles=titles, vertical_spacing=0.07, horizontal_spacing=0.1)
    for column, over in enumerate(("T", "V"), 1):
        grown = [p for p in points if p.over == over]
        for path, way in product(DASHES, COLOURS):
            _add_curves(figure, column, [p for p in grown if (p.path, p.way) == (path, way)])
        sizes = sorted({p.size for p in grown})
        figure.update_xaxes(type="log", tickvals=sizes, ticktext=[f"{n // 1024} K" for n in sizes], col=column)
        figure.update_xaxes(title_text=over, row=3, col=column)
    for row, title in enumerate(("CPU seconds", "MiB above inputs", "MiB above inputs<br>and gradients"), 1):
        figure.update_yaxes(title_text=title, row=row, col=1)
    figure.update_yaxes(type="log", dtick=1)
    legend = {"orientation": "h", "y": -0.08}
    figure.update_layout(template="plotly_white", width=900, height=900, margin={"t": 40}, legend=legend)
    out.write_text(_drawn(figure))


def _add_curves(figure: go.Figure, column: int, points: list[Point]) -> None:
    """One path and way: time above, memory below."""
    path, way = points[0].path, points[0].way
    curves = [p.seconds for p in points], [p.mib for p in points], [max(p.own_mib, LEAST_MIB) for p in points]
    for row, values in enumerate(curves, 1):
        figure.add_scatter(
            x=[p.size for p in points],
            y=values,
            name=f"{way}, from {path}",
            line={"color": COLOURS[way], "dash": DASHES[path]},
            showlegend=row == column == 1,
            row=row,
            col=column,
        )


def _drawn(figure: go.Figure) -> str:
    """The figure as SVG, drawn by a browser."""
    page_text = f"<!doctype html><meta charset=utf-8><script>{get_plotlyjs()}</script><div id=plot></div>"
    draw = """spec => Plotly.newPlot("plot", spec.data, spec.layout)
        .then(() => Plotly.toImage("plot", {format: "svg", width: spec.layout.width, height: spec.layout.height}))"""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content(page_text)
        address = page.evaluate(draw, json.loads(str(figure.to_json())))
        browser.close()
    return unquote(address.split(",", 1)[1]) + "\n"
