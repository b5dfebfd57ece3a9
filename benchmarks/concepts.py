"""Draws the pictures of docs/concepts; two are of a batch as the code lays it out, one is measured.

python -m benchmarks.concepts            (four pictures, in a second)
python -m benchmarks.concepts MODEL      (all five; that of exactness samples with a model, in ten)
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import torch

import lockstep
from lockstep.align import state_before, target_indices
from lockstep.batch import Batch
from lockstep.learners.packing import pack

OUT = Path(__file__).parents[1] / "docs/pictures"
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 11.5px; fill: #59636e }
  .a { fill: #ddf4ff; stroke: #0969da } .b { fill: #fff1e5; stroke: #bc4c00 } .c { fill: #dafbe1; stroke: #1a7f37 }
  .d { fill: #fbefff; stroke: #8250df } .none { fill: none; stroke: #d1d9e0; stroke-dasharray: 4 3 }
  .line { stroke: #59636e; stroke-width: 1.3; fill: none } .head { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .line { stroke: #9198a1 } .head { fill: #9198a1 }
    .a { fill: #121d2f; stroke: #4493f8 } .b { fill: #221a19; stroke: #f0883e } .c { fill: #12261e; stroke: #3fb950 }
    .d { fill: #1e1a2e; stroke: #ab7df8 } .none { stroke: #3d444d }
  }
"""
COLORS = "abcd"
STORY = ("Who", "?", "The", "dog", ".")


def picture(height: int, says: str, parts: Sequence[str]) -> str:
    """An SVG of 760 units in width."""
    head = '<marker id="h" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" role="img" aria-label="{escape(says)}">\n'
        f'<style>{STYLE}</style>\n<defs>{head}<path class="head" d="M0,0 L7,3 L0,6 z"/></marker></defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def box(x: float, y: float, width: float, label: str, color: str = "a", height: float = 30) -> str:
    """A rectangle with words in its middle."""
    return (
        f'<rect class="{color}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"/>'
        f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4.5:.1f}" text-anchor="middle">{escape(label)}</text>'
    )


def word(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Words by themselves."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A line that ends in a head."""
    return f'<line class="line" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" marker-end="url(#h)"/>'


def draw_alignment() -> str:
    """Which output of a model describes which token, as `align` says of a batch of two sequences."""
    words = [*STORY, "Why", "?", "So"]
    batch = Batch(torch.arange(8), torch.tensor([5, 3]))
    own_M = target_indices(batch)
    outputs_M = state_before(own_M)
    parts = [word(8, 49, "outputs", "small"), word(8, 149, "tokens", "small"), word(8, 194, "columns", "small")]
    described = set(own_M.tolist())
    for index, text in enumerate(words):
        x, color = 76 + 84 * index, COLORS[int(batch.row[index])]
        parts += [box(x, 30, 74, f"h {index}", color), box(x, 130, 74, text, color)]
        parts.append(
            box(x, 175, 74, f"t = {index}" if index in described else "0", color if index in described else "none")
        )
    parts += [
        arrow(76 + 84 * output + 37, 62, 76 + 84 * own + 37, 127)
        for output, own in zip(outputs_M.tolist(), own_M.tolist(), strict=True)
    ]
    parts.append(
        word(
            76,
            228,
            "log π, V, reward, advantage and mask of a token stand at its own index; the first of a sequence has none",
            "small",
        )
    )
    return picture(242, "Each output describes the token on its right, within its own sequence", parts)


def draw_ragged_batch() -> str:
    """Sequences end to end, and the micro-batches that a budget of 16 tokens makes of them."""
    lengths, prompts, budget = [9, 4, 6, 12], [3, 2, 2, 4], 16
    batch = Batch(torch.arange(sum(lengths)), torch.tensor(lengths))
    parts = [word(8, 16, f"{len(batch)} sequences padded to the longest: {len(batch) * max(lengths)} places", "small")]
    unit = 22
    for row, length in enumerate(lengths):
        parts += [cell(8 + unit * at, 24 + 20 * row, row, at, length, prompts[row]) for at in range(max(lengths))]
    parts.append(word(8, 130, f"the same as a ragged batch: {batch.tokens.numel()} tokens, lengths {lengths}", "small"))
    for index in range(batch.tokens.numel()):
        row, at = int(batch.row[index]), int(batch.position[index])
        parts.append(cell(8 + unit * index, 138, row, at, lengths[row], prompts[row]))
    bins = pack(lengths, budget)
    parts.append(word(8, 188, f"packed to learner.micro_batch_tokens={budget}: {len(bins)} passes", "small"))
    for number, rows in enumerate(bins):
        places = [(row, at) for row in rows for at in range(lengths[row])]
        y = 196 + 22 * number
        parts += [cell(8 + unit * n, y, row, at, lengths[row], prompts[row]) for n, (row, at) in enumerate(places)]
    parts.append(
        word(
            8,
            282,
            "filled: trained tokens (mask = 1); outlined: prompts; dashed: padding, which a ragged batch has none of",
            "small",
        )
    )
    return picture(
        294, "A ragged batch has no padding; micro-batches are whole sequences within a budget of tokens", parts
    )


def cell(x: float, y: float, row: int, at: int, length: int, prompt: int) -> str:
    """A place of a batch: a trained token, one of the prompt, or padding."""
    color, opacity = (COLORS[row], 0.0 if at < prompt else 1.0) if at < length else ("none", 0.0)
    return f'<rect class="{color}" fill-opacity="{opacity}" x="{x:.1f}" y="{y:.1f}" width="19" height="17" rx="2"/>'


def draw_weight_sync() -> str:
    """The way of one bucket, and of its proof."""
    parts = [
        word(88, 20, "learner ranks", "small", "middle"), word(380, 20, "route", "small", "middle"),
        word(672, 20, "inference engine", "small", "middle"),
        box(8, 32, 160, "weights, step 12"), box(8, 92, 160, "bucket 1, 2, 3, …"),
        box(8, 152, 160, "fingerprints sent"),
        box(270, 92, 220, "memory · gloo · NCCL · CUDA IPC", "none"),
        box(592, 92, 160, "the engine's weights", "b"), box(592, 152, 160, "fingerprints read", "b"),
        box(592, 212, 160, "caches dropped", "b"),
        box(270, 212, 220, "compare, tensor by tensor", "c"), box(270, 272, 220, "proof: version 12 attested", "c"),
        arrow(88, 62, 88, 90), arrow(88, 122, 88, 150), arrow(168, 107, 268, 107), arrow(490, 107, 590, 107),
        arrow(672, 122, 672, 150), arrow(672, 182, 672, 210), arrow(168, 167, 300, 210), arrow(592, 167, 460, 210),
        arrow(592, 227, 492, 227), arrow(380, 242, 380, 270),
        word(505, 292, "or the run ends, and names the tensors", "small"),
    ]  # fmt: skip
    return picture(
        312, "Weights travel in buckets; fingerprints of what was sent and of what the engine holds are compared", parts
    )


def draw_checkpoint() -> str:
    """What training waits for while a checkpoint is saved, and when the folder gets its name."""
    parts = [word(8, 49, "training", "small"), word(8, 99, "writer", "small"), word(8, 149, "disk", "small")]
    for number, step in enumerate(("step 9", "step 10", "copy", "step 11", "step 12", "step 13")):
        x = 76 + (0, 120, 240, 292, 412, 532)[number]
        parts.append(box(x, 30, 48 if step == "copy" else 116, step, "b" if step == "copy" else "a"))
    parts += [
        box(370, 80, 110, "write, sum", "c"), box(484, 80, 60, "flush", "c"), box(548, 80, 76, "rename", "c"),
        box(76, 130, 548, "step_000000 … (kept)", "d"), box(628, 130, 120, "step_000010", "d"),
        arrow(340, 62, 372, 78), arrow(624, 97, 660, 128),
        word(76, 186, "killed before the rename, a run resumes from what was kept; after it, from step 10", "small"),
    ]  # fmt: skip
    return picture(200, "Training waits for a copy in memory; the folder gets its name when all is on the disk", parts)


def measure_gaps(model: str, exact: bool) -> list[float]:
    """The gap of each sampled token between sampler and learner, nats."""
    learner = lockstep.open_learner(model, optimizer={"lr": 1e-3}, exact=exact)
    sampler = lockstep.open_sampler(model, learner)
    lockstep.sync(learner, sampler)
    prompts = [f"Once upon a time there was a {name}" for name in ("dog", "cat", "boy", "girl")]
    batch = lockstep.rollout(sampler, prompts, lambda *_: 0.0, max_tokens=48, num_generations=8, seed=0).batch
    gaps_M = (learner.logprobs(batch) - batch["sampler_logprob"]).abs()[batch.mask]
    lockstep.close_all()
    return gaps_M.tolist()


def draw_exactness(gaps: dict[str, list[float]]) -> str:
    """How many tokens have which gap, with the field's usual kernels and with exact ones."""
    edges = [0.0, *(10.0**power for power in range(-8, -3)), math.inf]
    names = ["0", "below 1e-8", "1e-8", "1e-7", "1e-6", "1e-5", "1e-4"]
    parts = [word(8, 20, "|Δ log-probability| of each sampled token between sampler and learner, nats")]
    for number, (name, values) in enumerate(gaps.items()):
        y = 54 + 120 * number
        counts = [sum(value == 0.0 for value in values)]
        counts += [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
        parts.append(word(8, y, f"{name}: {len(values):,} tokens, largest gap {max(values):.1e}", "small"))
        for column, count in enumerate(counts):
            height = 50 * count / len(values)
            x = 24 + 104 * column
            parts.append(
                f'<rect class="{COLORS[number]}" x="{x}" y="{y + 74 - height:.1f}" width="88" height="{height:.1f}"/>'
            )
            parts.append(word(x + 44, y + 70 - height, f"{count:,}" if count else "", "small", "middle"))
            parts.append(word(x + 44, y + 88, names[column], "small", "middle"))
    return picture(280, "With exact kernels every gap is 0; with usual ones most are rounding", parts)


def draw_all(model: str | None) -> Iterator[tuple[str, str]]:
    """Names and contents of the pictures; that of exactness only with a model."""
    yield "alignment.svg", draw_alignment()
    yield "ragged_batch.svg", draw_ragged_batch()
    yield "weight_sync.svg", draw_weight_sync()
    yield "checkpoint.svg", draw_checkpoint()
    if model:
        gaps = {name: measure_gaps(model, exact) for name, exact in (("usual kernels", False), ("exact kernels", True))}
        yield "exactness.svg", draw_exactness(gaps)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Draws the pictures of docs/concepts.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a Hugging Face folder, for the picture of exactness")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER")
    options = parser.parse_args()
    for name, svg in draw_all(options.model):
        (options.out / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
