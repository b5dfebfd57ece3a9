"""Tokens per second of the samplers beside `transformers` `generate`: same weights, prompts and
stop tokens.

    python -m benchmarks.generate [--save]
    python -m benchmarks.generate --sizes toy --repeats 1     # seconds

Prompts of 8 to 64 tokens, answered by one or by 8 responses each, on one thread. Uneven responses
end at stop tokens, equal ones are all as long as they may be. Only tokens up to and including the
stop are counted, on all sides; prompts take their time, at 100 M parameters most of that of uneven
responses. First each side decodes greedily, and all must write the same tokens. At temperature 1
each has its own random numbers, hence other lengths; `transformers` is not asked for
log-probabilities, which the samplers always return. `exact` is the torch sampler as a user has it
by default, `inexact` by PyTorch's own kernels. vLLM, where it is installed, is in a process of its
own, whose CPU seconds alone are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
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
)
from benchmarks.harness import Row, environment, measure_interleaved, parser_of, save, table
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.samplers.torch.sampler import TorchSampler

LENGTHS = ("uneven", "equal")


@dataclass(frozen=True)
class Cell:
    """Figures of all sides of a case.

    Attributes:
        name: What was asked for.
        tokens: Tokens that each side wrote, in each repetition.
        times: CPU seconds that each took.
    """

    name: str
    tokens: dict[str, list[int]]
    times: dict[str, list[float]]

    def rows(self) -> list[Row]:
        """Tokens per CPU second beside `transformers`; the ratio is the median over pairs."""
        speeds = {
            side: [n / s for n, s in zip(self.tokens[side], taken, strict=True)]
            for side, taken in self.times.items()
        }
        theirs = speeds.pop("transformers")
        return [
            Row(
                f"{self.name}, {side}",
                statistics.median(theirs),
                statistics.median(own),
                statistics.median(b / a for a, b in zip(theirs, own, strict=True)),
            )
            for side, own in speeds.items()
        ]


def compare(
    name: str,
    case: Case,
    lm: LlamaForCausalLM,
    samplers: Mapping[str, TorchSampler | SamplerPool],
    repeats: int,
) -> Cell:
    """Times all sides of a case in turn, once they have been seen to decode alike."""
    sides: dict[str, Side] = {name: Lockstep(sampler, case) for name, sampler in samplers.items()}
    sides = {"transformers": Transformers(lm, case), **sides}
    _require_alike(case.greedy, lm, samplers)
    times = measure_interleaved(
        list(sides.values()), repeats, cpu_clocks=[side.cpu for side in sides.values()]
    )
    return Cell(
        name,
        {side: made.tokens[1 : 1 + repeats] for side, made in sides.items()},
        dict(zip(sides, times, strict=True)),
    )


def _require_alike(
    case: Case, lm: LlamaForCausalLM, samplers: Mapping[str, TorchSampler | SamplerPool]
) -> None:
    expected = Transformers(lm, case)()
    for name, sampler in samplers.items():
        if Lockstep(sampler, case)() != expected:
            raise RuntimeError(
                f"greedy decoding wrote other tokens by {name}, so the speeds cannot be compared"
            )


def measure_size(size: str, args: argparse.Namespace) -> list[Cell]:
    """Measures the cells of a size that are asked for, with one model."""
    lm = build_lm(size)
    slots = LOADS[size][0]
    samplers: dict[str, TorchSampler | SamplerPool] = {
        side: TorchSampler(prepare(copy.deepcopy(lm), exact=side == "exact"), slots)
        for side in ("exact", "inexact")
    }
    cells: list[Cell] = []
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(vllm_sampler(size))
        if pool is not None:
            samplers["vllm"] = pool
        for lengths, generations in product(LENGTHS, (1, 8)):
            case = Case.of(size, lengths, generations)
            repeats = min(args.repeats, 3) if size == "100M" else args.repeats
            cells.append(
                compare(f"{size}, {lengths}, N = {generations}", case, lm, samplers, repeats)
            )
            print(table(cells[-1].rows(), "transformers", "tokens per CPU second"), flush=True)
    return cells


def main() -> None:
    """Entry point."""
    parser = parser_of(__doc__, "generate")
    parser.add_argument("--sizes", nargs="+", default=list(LOADS), choices=LOADS)
    parser.add_argument(
        "--repeats", type=int, default=7, help="interleaved pairs; of the largest model at most 3"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells = [cell for size in args.sizes for cell in measure_size(size, args)]
    rows = [row for cell in cells for row in cell.rows()]
    print("", environment(), table(rows, "transformers", "tokens per CPU second"), sep="\n")
    if args.save:
        print(save("generate", environment(), rows, {"repeats": args.repeats}))


if __name__ == "__main__":
    main()
