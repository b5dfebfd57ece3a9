"""Sampling a token from logits: Lockstep's `draw` beside the head's product and beside what `generate` does.

    python -m benchmarks.draw [--save]

CPU milliseconds of one thread, medians of interleaved runs, for one token of each row. The head's product is
`F.linear` of [rows, hidden] by [vocabulary, hidden]; the ratio is that of `draw` in exact mode to it, of each hidden
size. "generate" is what `transformers` does for a token and its log-probability: its warpers of temperature, top-k and
top-p on fp32 logits, a softmax, `torch.multinomial`, and a log-softmax. In exact mode log-probabilities must be those
of `token_scores`, to the bit, or the run ends with an error.

Rows of "trained" logits fall with the rank as a power law does, with exponents from 1.2 to 3 over the rows, so that
one token to some thousands make up nine tenths; "random" ones are normal, as a model that was never trained gives them,
where most of the vocabulary does. Tokens are in random order, which is no model's order and costs `draw` time.

An older commit is measured by this file under its code: `PYTHONPATH=FOLDER python benchmarks/draw.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from benchmarks.harness import environment, measure_interleaved, save
from lockstep.distributed.sampling import draw, token_scores
from lockstep.types import SamplingParams

HIDDEN = (512, 1024, 2048)
ROWS = (8, 64)
SAMPLINGS = {
    "all tokens": SamplingParams(1),
    "temperature 0.7": SamplingParams(1, temperature=0.7),
    "greedy": SamplingParams(1, temperature=0.0),
    "top-k 50": SamplingParams(1, top_k=50),
    "top-p 0.9": SamplingParams(1, top_p=0.9),
    "top-k 50, top-p 0.9": SamplingParams(1, top_k=50, top_p=0.9),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Cell:
    """One line of the table; milliseconds of CPU time.

    Attributes:
        rows: Number of rows, a token each.
        dtype: Type of the head and of the logits.
        logits: Their kind.
        sampling: The distribution.
        head_ms: The head's product, by hidden size.
        generate_ms: The way of `transformers`.
        draw_ms: `draw`.
        exact_ms: `draw` in exact mode.
    """

    rows: int
    dtype: str
    logits: str
    sampling: str
    head_ms: dict[int, float]
    generate_ms: float
    draw_ms: float
    exact_ms: float


def make_logits(kind: str, rows: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Logits of a kind, fp32 [rows, vocabulary]."""
    if kind == "random":
        return torch.randn(rows, vocabulary, generator=generator)
    fall_V = -torch.arange(1, vocabulary + 1).log()
    order_MV = torch.rand(rows, vocabulary, generator=generator).argsort(-1)
    return torch.linspace(1.2, 3.0, rows)[:, None] * fall_V[order_MV]


def generate(logits: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """A token of each row and its log-probability, as `transformers` samples them."""
    nothing = torch.empty(len(logits), 0, dtype=torch.int64)
    scores: Tensor = warpers(sampling)(nothing, logits.float())  # pyright: ignore[reportArgumentType]
    token = scores.argmax(-1, keepdim=True) if sampling.greedy else torch.multinomial(scores.softmax(-1), 1)
    return token[:, 0], scores.log_softmax(-1).gather(-1, token)[:, 0]


def warpers(sampling: SamplingParams) -> LogitsProcessorList:
    """The warpers of a distribution."""
    chosen = LogitsProcessorList()
    if sampling.temperature not in (0.0, 1.0):
        chosen.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chosen.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chosen.append(TopPLogitsWarper(sampling.top_p))
    return chosen


def compare(rows: int, dtype: str, heads: dict[int, Tensor], vocabulary: int, repeats: int) -> Iterator[Cell]:
    """Measures every kind of logits and every distribution."""
    generator = torch.Generator().manual_seed(rows)
    states = {size: torch.randn(rows, size, generator=generator).to(head.dtype) for size, head in heads.items()}
    uniform = torch.rand(rows, dtype=torch.float64, generator=generator)
    for kind in ("trained", "random"):
        logits = make_logits(kind, rows, vocabulary, generator).to(DTYPES[dtype])
        for name, sampling in SAMPLINGS.items():
            if kind == "random" and name != "top-p 0.9":
                continue  # others take the same time for any logits
            token, logprob = draw(logits, uniform, sampling, True)
            if not torch.equal(logprob, token_scores(logits, token, sampling, row_invariant=True)[0]):
                raise RuntimeError(f"log-probabilities of {name} are not those of `token_scores`")
            ways = [partial(F.linear, states[size], head) for size, head in heads.items()]
            ways += [partial(generate, logits, sampling)]
            ways += [partial(draw, logits, uniform, sampling, exact) for exact in (False, True)]
            *head_ms, theirs, ours, exact = (1e3 * way.cpu_median_s for way in measure_interleaved(ways, repeats))
            yield Cell(rows, dtype, kind, name, dict(zip(heads, head_ms, strict=True)), theirs, ours, exact)


def show(cell: Cell) -> str:
    """A line of the table."""
    heads = " / ".join(f"{ms:.1f}" for ms in cell.head_ms.values())
    ratios = " / ".join(f"{cell.exact_ms / ms:.2f}" for ms in cell.head_ms.values())
    return (
        f"| {cell.rows} | {cell.dtype} | {cell.logits} | {cell.sampling} | {heads} | {cell.generate_ms:.1f} | "
        f"{cell.draw_ms:.1f} | {cell.exact_ms:.1f} | {ratios} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeats", type=int, default=7, help="interleaved runs; the table has their medians")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/draw.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(environment())
    sizes = " / ".join(str(size) for size in HIDDEN)
    print(f"| rows | type | logits | sampling | head of {sizes}, ms | generate | draw | exact draw | exact / head |")
    print("|---:|---|---|---|---:|---:|---:|---:|---:|")
    cells: list[Cell] = []
    for dtype in DTYPES:
        generator = torch.Generator().manual_seed(0)
        heads = {size: torch.randn(args.vocabulary, size, generator=generator).to(DTYPES[dtype]) for size in HIDDEN}
        for rows in args.rows:
            for cell in compare(rows, dtype, heads, args.vocabulary, args.repeats):
                print(show(cell), flush=True)
                cells.append(cell)
    if args.save:
        print(save("draw", environment(), cells, {"repeats": args.repeats, "vocabulary": args.vocabulary}))


if __name__ == "__main__":
    main()
