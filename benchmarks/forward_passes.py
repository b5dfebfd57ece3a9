"""Forward passes that the torch sampler makes, beside those that list scheduling of the same responses needs.

    python -m benchmarks.forward_passes [--save]

More requests than there are slots, of uneven lengths. List scheduling gives each slot that falls free the next request
at once: a response of n tokens holds a slot for n passes, the first of which computes its prompt.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence

import torch

from benchmarks.generate_sides import LOADS, Case, Lockstep, build_lm, prepare
from benchmarks.harness import Row, environment, save, table
from lockstep.samplers.torch.sampler import TorchSampler


def schedule(lengths: Sequence[int], slots: int) -> int:
    """Counts the passes in which list scheduling writes responses.

    Args:
        lengths: Tokens of the responses, in the order in which they are admitted.
        slots: Responses that are written side by side.
    """
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def compare(size: str, requests: int, slots: int) -> Row:
    """Counts the passes of one call. The ratio is the share of them that was needed."""
    lm = build_lm(size)
    prepare(lm, exact=True)
    sampler = TorchSampler(lm, slots)
    lengths = list(map(len, Lockstep(sampler, Case.of(size, responses=requests))()))
    needed = schedule(lengths, slots)
    name = f"{size}, {requests} requests, {slots} slots, {min(lengths)} to {max(lengths)} tokens"
    return Row(name, needed, sampler.passes, needed / sampler.passes)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["toy", "default"], choices=LOADS)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/forward_passes.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [compare(size, args.requests, slots) for size in args.sizes for slots in args.slots]
    print(environment(), table(rows, "list scheduling", "forward passes"), sep="\n")
    if args.save:
        print(save("forward_passes", environment(), rows, {}))


if __name__ == "__main__":
    main()
