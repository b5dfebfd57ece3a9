"""Attention without padding on a real GPU, against the same in float64, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.models.attention import PackedLayout
from lockstep.models.kernels import FUSED, VARLEN, AttentionKernel, run_torch_attention

pytestmark = pytest.mark.gpu
LENGTHS = (700, 1, 333, 64, 128, 5, 1024)


@pytest.mark.parametrize("window", [None, 1, 100, 4096])
@pytest.mark.parametrize(("heads", "groups", "size"), [(8, 2, 128), (4, 4, 64), (7, 1, 256)])
def test_unpadded_attention_error_is_at_most_twice_padded_error(
    heads: int, groups: int, size: int, window: int | None
) -> None:
    """No further than twice what bf16 grids are."""
    torch.manual_seed(0)
    batch = Batch(torch.zeros(sum(LENGTHS), dtype=torch.int64), torch.tensor(LENGTHS))
    shapes = [(1, number, sum(LENGTHS), size) for number in (heads, groups, groups)]
    given = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    slope = torch.randn(1, sum(LENGTHS), heads, size, dtype=torch.bfloat16)

    def compute(kernel: AttentionKernel, device: str, dtype: torch.dtype) -> list[Tensor]:
        q, k, v = (x.to(device, dtype).requires_grad_() for x in given)
        packed = PackedLayout.from_batch(batch).map_tensors(lambda x: x.to(device))
        out = packed.attend(kernel, 0, q, k, v, size**-0.5, window)
        found = [out, *torch.autograd.grad(out, (q, k, v), slope.to(device, dtype))]
        return [x.detach().cpu().double() for x in found]

    true = compute(FUSED, "cpu", torch.float64)
    ours, padded = (compute(kernel, "cuda", torch.bfloat16) for kernel in (VARLEN, FUSED))
    for one, other, expected in zip(ours, padded, true, strict=True):
        assert (one - expected).abs().mean() <= 2 * (other - expected).abs().mean()


def test_fp32_grouped_attention_allocates_no_full_score_matrix() -> None:
    heads, groups, tokens, size = 16, 4, 4096, 64
    q, k, v = (
        torch.randn(1, n, tokens, size, device="cuda", requires_grad=True)
        for n in (heads, groups, groups)
    )
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = run_torch_attention(q, k, v, None, size**-0.5)
    grown = torch.cuda.max_memory_allocated() - before
    assert grown < heads * tokens**2  # bytes; a fourth of a table in fp32
    wanted = run_torch_attention(q.double(), k.double(), v.double(), None, size**-0.5)
    assert (out - wanted).abs().max() < 1e-4
