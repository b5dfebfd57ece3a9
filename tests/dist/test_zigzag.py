"""Attention of sequences that are cut zig-zag over ranks against the same in one process, values
and gradients.
"""

from __future__ import annotations

import pytest
import torch
from ranks import Layout, Ranks
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.models.attention import PackedLayout
from lockstep.models.exact.attention import BlockwiseKernel
from lockstep.models.kernels import FUSED, AttentionKernel
from lockstep.models.zigzag import ZigzagLayout
from lockstep_logprobs.packed import Packing

HEADS, GROUPS, SIZE, SCALING = 4, 2, 8, 0.3
WINDOWS = [None, 5]
KERNELS: dict[str, tuple[AttentionKernel, float]] = {
    "plain": (FUSED, 1e-12),
    "cap": (BlockwiseKernel(0.5), 2e-6),
    "sinks": (BlockwiseKernel(None, torch.linspace(-1, 3, HEADS)), 2e-6),
}
"""Kernels with tolerances: in fp64 or fp32."""


def row(lengths: tuple[int, ...]) -> Batch:
    return Batch(torch.arange(sum(lengths)), torch.tensor(lengths))


def drawn(tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [1, heads, T, size], float64."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(1, heads, tokens, SIZE) for heads in (HEADS, GROUPS, GROUPS)]
    query, key, value = (
        torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes
    )
    return query, key, value


def weights(tokens: int) -> Tensor:
    return torch.randn(
        tokens, HEADS, SIZE, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )


def whole(lengths: tuple[int, ...], window: int | None, kernel: AttentionKernel) -> list[Tensor]:
    """Outputs [T, heads, size], and gradients of Σ weight · output with respect to queries, keys
    and values.
    """
    q, k, v = (x.requires_grad_() for x in drawn(sum(lengths)))
    out = PackedLayout.from_batch(row(lengths)).attend(kernel, 0, q, k, v, SCALING, window)[0]
    return [out.detach(), *torch.autograd.grad((out * weights(len(out))).sum(), (q, k, v))]


def cut(
    layout: Layout, lengths: tuple[int, ...]
) -> tuple[Tensor, ZigzagLayout, Tensor, Tensor, Tensor]:
    """A rank's positions and layout, and its queries, keys and values."""
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    packing = Packing(bounds, sum(lengths), layout.cp)
    held = packing.positions(layout.cp_rank)
    zigzag = ZigzagLayout.from_row(row(lengths), packing, layout.cp_rank, layout.cp_group)
    q, k, v = (x[:, :, held].requires_grad_() for x in drawn(sum(lengths)))
    return held, zigzag, q, k, v


def shared(
    layout: Layout, lengths: tuple[int, ...], window: int | None, kernel: AttentionKernel
) -> list[Tensor]:
    """The same of one rank's tokens, and which these are."""
    held, zigzag, q, k, v = cut(layout, lengths)
    out = zigzag.attend(kernel, 0, q, k, v, SCALING, window)[0]
    gradients = torch.autograd.grad((out * weights(sum(lengths))[held]).sum(), (q, k, v))
    return [held, out.detach(), *gradients]


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("cp", "lengths"), [(2, (8,)), (2, (12, 4, 40, 4, 16)), (4, (8, 48, 16, 8)), (2, (8, 1200))]
)
def test_zigzag_attention_outputs_and_gradients_match_one_process(
    ranks: Ranks, cp: int, lengths: tuple[int, ...], window: int | None, kind: str
) -> None:
    """Also chunks that begin anywhere, and of several blocks of queries."""
    kernel, tolerance = KERNELS[kind]
    expected = whole(lengths, window, kernel)
    for held, out, *gradients in ranks.run(shared, lengths, window, kernel, cp=cp):
        torch.testing.assert_close(out, expected[0][held], atol=tolerance, rtol=0.0)
        for mine, of_all in zip(gradients, expected[1:], strict=True):
            torch.testing.assert_close(mine, of_all[:, :, held], atol=tolerance, rtol=0.0)


def leaks(layout: Layout, lengths: tuple[int, ...], own: int) -> tuple[bool, bool]:
    """Whether other sequences' numbers move one sequence's outputs, and whether its outputs have
    gradients there.
    """
    held, zigzag, q, k, v = cut(layout, lengths)
    mine = row(lengths).row[held] == own
    others = zip((q, k, v), drawn(sum(lengths), seed=1), strict=True)
    other_q, other_k, other_v = (
        torch.where(mine[None, None, :, None], x, y[:, :, held]) for x, y in others
    )
    out = zigzag.attend(FUSED, 0, q, k, v, SCALING, None)[0]
    moved = not torch.equal(
        out[mine], zigzag.attend(FUSED, 0, other_q, other_k, other_v, SCALING, None)[0][mine]
    )
    gradients = torch.autograd.grad(out[mine].square().sum(), (q, k, v))
    return moved, any(bool((gradient[:, :, ~mine] != 0).any()) for gradient in gradients)


def test_zigzag_attention_does_not_leak_between_packed_sequences(ranks: Ranks) -> None:
    for own in range(3):
        assert ranks.run(leaks, (12, 20, 8), own, cp=2) == [(False, False)] * 2


def test_zigzag_split_gives_every_rank_equal_attention_work() -> None:
    packing = Packing(torch.tensor([0, 64]), 64, 4)
    shares = [ZigzagLayout.from_row(row((64,)), packing, rank, None).chunks for rank in range(4)]
    assert len({sum(chunk.size * chunk.seen for chunk in chunks) for chunks in shares}) == 1
