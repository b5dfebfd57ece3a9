"""Tokens per second of the samplers beside `transformers` `generate`: same weights, prompts and stop tokens.

    python -m benchmarks.generate [--save]
    python -m benchmarks.generate --sizes toy --lengths equal --generations 1 --sides exact     # one cell, seconds

Prompts of 8 to 64 tokens, answered by one or by 8 responses each, on one thread. Uneven responses end at stop tokens,
equal ones are all as long as they may be. Only tokens up to and including the stop are counted, on all sides. First
each side decodes greedily, and all must write the same tokens. At temperature 1 each has its own random numbers, hence
other lengths; `transformers` is not asked for log-probabilities, which the samplers always return. `exact` is the torch
sampler as a user has it by default, `inexact` by PyTorch's own kernels. vLLM, where it is installed, is in a process of
its own: what goes to and fro is part of its elapsed time, and its CPU seconds are those of its process alone.

Memory is the most that a call adds to what the process held before it. vLLM's is that of its whole process, which holds
the weights and reserves a cache.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product

import torch
from transformers import LlamaForCausalLM

from benchmarks.generate_sides import (
    LOADS,
    Case,
    Lockstep,
    Side,
    Transformers,
    build_lm,
    prepare,
    vllm_sampler,
    worker_peaks_mb,
)
from benchmarks.harness import Measurement, MemoryGrowth, Row, environment, measure_interleaved, save, table
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.samplers.torch.sampler import TorchSampler

LENGTHS = ("uneven", "equal")
SIDES = ("exact", "inexact", "vllm")


@dataclass(frozen=True)
class Cell:
    """Figures of all sides of a case, the baseline's first.

    Attributes:
        name: What was asked for.
        tokens: Tokens that each wrote, in each repetition.
        times: Seconds that each took.
        growth: Bytes that a call added at most; NaN where another process is at work.
    """

    name: str
    sides: tuple[str, ...]
    tokens: list[list[int]]
    times: list[Measurement]
    growth: list[float]

    def rows(self, clock: Callable[[Measurement], tuple[float, ...]]) -> list[Row]:
        """Tokens per second by a clock, the ratio being the median over pairs."""
        baseline, *own = [
            [n / s for n, s in zip(tokens, clock(taken), strict=True)]
            for tokens, taken in zip(self.tokens, self.times, strict=True)
        ]
        medians = [
            (statistics.median(speeds), statistics.median(b / a for a, b in zip(baseline, speeds, strict=True)))
            for speeds in own
        ]
        theirs = statistics.median(baseline)
        return [
            Row(f"{self.name}, {side}", theirs, speed, ratio)
            for side, (speed, ratio) in zip(self.sides, medians, strict=True)
        ]

    def memory(self) -> list[Row]:
        """MB that a call adds."""
        theirs, *own = (max(grown, 1e5) / 1e6 for grown in self.growth)  # below, pages come and go
        pairs = zip(self.sides, own, strict=True)
        return [Row(f"{self.name}, {side}", theirs, mb, theirs / mb) for side, mb in pairs if not math.isnan(mb)]


def compare(
    name: str,
    case: Case,
    lm: LlamaForCausalLM,
    samplers: Mapping[str, TorchSampler | SamplerPool],
    repeats: int,
) -> Cell:
    """Times all sides of a case in turn, once they have been seen to decode alike."""
    sides: list[Side] = [Transformers(lm, case), *(Lockstep(sampler, case) for sampler in samplers.values())]
    if case.temperature or case.stops:
        _require_alike(case.greedy, lm, samplers)
    times = measure_interleaved(sides, repeats, cpu_clocks=[side.cpu for side in sides])
    growth = [_growth(side) for side in sides]
    return Cell(name, tuple(samplers), [side.tokens[1 : 1 + repeats] for side in sides], times, growth)


def _require_alike(case: Case, lm: LlamaForCausalLM, samplers: Mapping[str, TorchSampler | SamplerPool]) -> None:
    expected = Transformers(lm, case)()
    for name, sampler in samplers.items():
        if Lockstep(sampler, case)() != expected:
            raise RuntimeError(f"greedy decoding wrote other tokens by {name}, so the speeds cannot be compared")


def _growth(side: Side) -> float:
    """Bytes that a call adds at most."""
    if isinstance(side, Lockstep) and isinstance(side.sampler, SamplerPool):
        return float("nan")
    grown = MemoryGrowth()
    side()
    return grown.peak()


def measure_size(size: str, args: argparse.Namespace) -> list[Cell]:
    """Measures the cells of a size that are asked for, with one model."""
    lm, slots = build_lm(size), LOADS[size][0]
    samplers: dict[str, TorchSampler | SamplerPool] = {
        side: TorchSampler(prepare(copy.deepcopy(lm), exact=side == "exact"), slots)
        for side in args.sides
        if side != "vllm"
    }
    cells: list[Cell] = []
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(vllm_sampler(size)) if "vllm" in args.sides else None
        if pool is not None:
            samplers["vllm"] = pool
        for lengths, generations, temperature in product(args.lengths, args.generations, args.temperatures):
            case = replace(Case.of(size, lengths, generations), temperature=temperature)
            how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
            repeats = min(args.repeats, 3) if size == "100M" else args.repeats
            cells.append(compare(f"{size}, {lengths}, N = {generations}, {how}", case, lm, samplers, repeats))
            print(table(cells[-1].rows(_cpu), "transformers", "tokens per CPU second"), flush=True)
        if pool is not None:
            held = ", ".join(f"{mb:.0f}" for mb in worker_peaks_mb())
            print(f"{size}: vLLM's process held {held} MB at most, weights and libraries included")
    return cells


def _cpu(taken: Measurement) -> tuple[float, ...]:
    return taken.cpu_s


def _wall(taken: Measurement) -> tuple[float, ...]:
    return taken.wall_s


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(LOADS), choices=LOADS)
    parser.add_argument("--lengths", nargs="+", default=list(LENGTHS), choices=LENGTHS)
    parser.add_argument("--generations", nargs="+", type=int, default=[1, 8], help="responses to a prompt")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[1.0], help="0 times greedy decoding")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES, help="beside transformers")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved pairs; of the largest model at most 3")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/generate.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells = [cell for size in args.sizes for cell in measure_size(size, args)]
    cpu, wall, memory = (
        [row for cell in cells for row in rows(cell)]
        for rows in (lambda cell: cell.rows(_cpu), lambda cell: cell.rows(_wall), Cell.memory)
    )
    print("", environment(), sep="\n")
    for rows, unit in ((cpu, "tokens per CPU second"), (wall, "tokens per second"), (memory, "MB that a call adds")):
        print(table(rows, "transformers", unit), "", sep="\n")
    if args.save:
        details = {"elapsed": [asdict(row) for row in wall], "memory_mb": [asdict(row) for row in memory]}
        print(save("generate", environment(), cpu, {"repeats": args.repeats, **details}))


if __name__ == "__main__":
    main()
