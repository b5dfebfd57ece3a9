"""Advantages of a large rollout batch: Lockstep's `gae` beside the usual loop over time, on one thread.

    python -m benchmarks.gae [--save]

The loop goes over a padded grid [B, T] from right to left and carries the next trainable token's value and advantage
over masked positions: with `torch.where`, or with products by the mask, as is customary but slower. It is also timed on
a grid that was laid out time-major beforehand, to please it. Both sides start from tensors that exist and return a new
one; their results are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import MemoryGrowth, Row, environment, measure, measure_interleaved, save, table
from lockstep.objectives.advantage import gae

Carry = Callable[[Tensor, Tensor, Tensor], Tensor]
GAMMA, LAM = 1.0, 0.95
BYTES_PER_TOKEN = 4 + 4 + 1 + 4
"""Reward, value and mask are read, the advantage is written: what no method can avoid."""


def by_choice(mask_B: Tensor, new_B: Tensor, old_B: Tensor) -> Tensor:
    return torch.where(mask_B, new_B, old_B)


def by_product(mask_B: Tensor, new_B: Tensor, old_B: Tensor) -> Tensor:
    return new_B * mask_B + old_B * ~mask_B


def loop(reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor, carry: Carry = by_choice) -> Tensor:
    """GAE (Schulman et al. 2016, eq. 16), one column of the grid after another."""
    advantage_BT = torch.empty_like(reward_BT)
    next_value_B = next_advantage_B = reward_BT.new_zeros(len(reward_BT))
    for t in reversed(range(reward_BT.shape[1])):
        value_B, mask_B = value_BT[:, t], mask_BT[:, t]
        delta_B = reward_BT[:, t] + GAMMA * next_value_B - value_B
        next_advantage_B = carry(mask_B, delta_B + GAMMA * LAM * next_advantage_B, next_advantage_B)
        next_value_B = carry(mask_B, value_B, next_value_B)
        advantage_BT[:, t] = next_advantage_B * mask_B
    return advantage_BT


def masks(sequences: int, tokens: int) -> dict[str, Tensor]:
    """Masks of the tokens that the policy chose, bool [B, T]."""
    generator = torch.Generator().manual_seed(0)
    turns = torch.rand(sequences, -(-tokens // 64), generator=generator) < 0.7
    return {
        "every token trained": torch.ones(sequences, tokens, dtype=torch.bool),
        "turns of 64 tokens, 30 % of them a tool's": turns.repeat_interleave(64, 1)[:, :tokens].contiguous(),
        "30 % of the tokens off at random": torch.rand(sequences, tokens, generator=generator) < 0.7,
    }


def compare(name: str, grid: tuple[Tensor, Tensor, Tensor], repeats: int) -> tuple[list[Row], dict[str, float]]:
    """Times the loop on both grids and `gae` with one λ and with one per sequence.

    Returns:
        Rows in seconds, and for `gae` with one λ its wall seconds, its peak memory and its largest difference.
    """
    rows, columns = grid[0].shape
    flat, lengths = [x.reshape(-1) for x in grid], torch.full((rows,), columns)
    ours = partial(gae, *flat, lengths, gamma=GAMMA, lam=LAM)
    each = partial(gae, *flat, lengths, gamma=GAMMA, lam=torch.full((rows,), LAM))
    expected = loop(*grid).reshape(-1)
    difference = max(float((method() - expected).abs().max()) for method in (ours, each))
    if difference > 1e-4:
        raise RuntimeError(f"the two sides differ by {difference}, so their speeds cannot be compared")
    time_major = [x.t().contiguous().t() for x in grid]
    methods = [partial(loop, *grid), partial(loop, *grid, carry=by_product), partial(loop, *time_major), ours, each]
    plain, product, turned, one, many = measure_interleaved(methods, repeats)
    pairs = [
        (f"{name}, CPU s", plain.cpu_median_s, one.cpu_median_s),
        (f"{name}, wall s", plain.wall_median_s, one.wall_median_s),
        (f"{name}, a λ per sequence, CPU s", plain.cpu_median_s, many.cpu_median_s),
        (f"{name}, the loop by products, CPU s", product.cpu_median_s, one.cpu_median_s),
        (f"{name}, the loop time-major, CPU s", turned.cpu_median_s, one.cpu_median_s),
    ]
    memory = MemoryGrowth()
    ours()
    peak_mb = memory.peak() / 1e6
    figures = {"wall_s": one.wall_median_s, "peak_mb": peak_mb, "largest_difference": difference}
    return [Row(row, theirs, mine, theirs / mine) for row, theirs, mine in pairs], figures


def copy_bandwidth(num_bytes: int) -> float:
    """Bytes per second that a copy between existing tensors reads and writes."""
    source, target = torch.ones(num_bytes // 4), torch.ones(num_bytes // 4)
    return 2 * num_bytes / measure(lambda: target.copy_(source), repeats=9).wall_median_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16_384, help="of each sequence")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved runs; the table has their medians")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/gae.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = (args.sequences, args.tokens)
    reward_BT, value_BT = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    num_tokens = reward_BT.numel()
    least_s = num_tokens * BYTES_PER_TOKEN / copy_bandwidth(num_tokens * 4)
    rows: list[Row] = []
    figures: dict[str, dict[str, float]] = {}
    for name, mask_BT in masks(*shape).items():
        compared, figures[name] = compare(name, (reward_BT, value_BT, mask_BT), args.repeats)
        rows += compared
    print(environment())
    print(table(rows, "loop over time", f"{shape[0]} × {shape[1]:,}"))
    for name, figure in figures.items():
        print(
            f"{name}: {figure['peak_mb']:.0f} MB at the peak, the result itself {num_tokens * 4e-6:.0f} MB; "
            f"{least_s / figure['wall_s']:.1%} of the speed that memory allows ({least_s:.4f} s, as a copy is); "
            f"largest difference {figure['largest_difference']:.1e}"
        )
    if args.save:
        print(save("gae", environment(), rows, {"repeats": args.repeats, "memory_limit_s": least_s, "gae": figures}))


if __name__ == "__main__":
    main()
