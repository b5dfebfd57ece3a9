"""Attention whose heads of queries share those of keys, in fp32 on a GPU that is not there."""

from __future__ import annotations

import pytest
import torch
from pretend_gpu import pretend_gpu
from torch.nn import functional as F

from lockstep.models.kernels import run_torch_attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp32_attention_on_gpu_repeats_shared_key_heads(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """PyTorch's kernels that keep no table of all pairs take no shared heads in fp32."""
    q, k, v = (torch.randn(2, heads, 5, 4, dtype=dtype) for heads in (6, 2, 2))
    wanted, given = run_torch_attention(q, k, v, None, 0.5), list[int]()
    compute = F.scaled_dot_product_attention

    def note(
        query: torch.Tensor, key: torch.Tensor, *args: object, **options: object
    ) -> torch.Tensor:
        given.append(key.shape[1])
        return compute(query, key, *args, **options)  # pyright: ignore

    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    with pretend_gpu():
        found = run_torch_attention(q.cuda(), k.cuda(), v.cuda(), None, 0.5).cpu()
    assert given == [6 if dtype == torch.float32 else 2]
    assert torch.allclose(found, wanted, atol=1e-6 if dtype == torch.float32 else 1e-2)
