"""Triton's kernels for exact models against PyTorch in float64, and a row's bits in any company.

Through Triton's interpreter on CPUs (`make kernels`), and on GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fused_device import DEVICE, HALF, MARKS
from torch import Tensor
from torch.nn import functional as F

from lockstep.models.exact.chunks import add_tree, multiply_in_chunks
from lockstep.models.exact.fused import attention, products

pytestmark = MARKS


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("depth", "columns"), [(8, 5), (100, 130), (64, 128)])
def test_fused_product_matches_float64_and_has_same_bits_in_any_batch(
    depth: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight, bias = (
        numbers(70, depth, dtype=dtype),
        numbers(columns, depth, dtype=dtype),
        numbers(columns, dtype=dtype),
    )
    whole = products.multiply_tiles(x, weight, bias)
    true = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(
        whole.double(), true, atol=1e-4, rtol=1e-5 if dtype == torch.float32 else 1e-2
    )
    for rows in (1, 7, 64):
        assert torch.equal(products.multiply_tiles(x[:rows], weight, bias), whole[:rows])
        assert torch.equal(products.multiply_tiles(x[-rows:], weight, bias), whole[-rows:])


def test_fused_product_columns_have_same_bits_when_weight_is_split() -> None:
    """Maps of the same input may be one product, and a head's may be cut anywhere."""
    x, weight = numbers(5, 40), numbers(300, 40)
    whole = products.multiply_tiles(x, weight, None)
    parts = [products.multiply_tiles(x, part, None) for part in weight.split([7, 130, 163])]
    assert torch.equal(torch.cat(parts, 1), whole)


def test_fused_chunks_on_ranks_have_bits_of_whole_product() -> None:
    x, weight = numbers(9, 96), numbers(40, 96)
    whole = multiply_in_chunks(x, weight, None, 8)
    pairs = list(zip(x.chunk(8, 1), weight.chunk(8, 1), strict=True))
    parts = [products.multiply_tiles(*pair, None) for pair in pairs]
    assert not torch.equal(sum(parts[1:], parts[0]), whole), "any order gives the same"
    for ranks in (2, 4, 8):
        own = zip(x.chunk(ranks, 1), weight.chunk(ranks, 1), strict=True)
        sums = [multiply_in_chunks(*shard, None, 8 // ranks) for shard in own]
        assert torch.equal(add_tree(iter(sums), ranks), whole)


@pytest.mark.parametrize("size", [3, 48, 1024, 2500])
def test_fused_mean_squares_match_float64_and_do_not_depend_on_batch(size: int) -> None:
    x = numbers(9, size)
    found = products.mean_squares(x)
    torch.testing.assert_close(found.double(), x.double().square().mean(-1), atol=1e-6, rtol=1e-6)
    assert torch.equal(products.mean_squares(x[4:5]), found[4:5])


@pytest.mark.parametrize("capability", [80, 90])
def test_exact_triton_kernels_compile_for_sm80_and_sm90(capability: int, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(__file__).with_name("compile_exact.py")), str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LENGTH = 75


@pytest.mark.parametrize("window", [None, 1, 9, 40])
@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 2, 8), (2, 2, 24)])
def test_fused_attention_matches_float64_with_same_bits_in_decode_and_prefill(
    heads: int, groups: int, size: int, window: int | None
) -> None:
    q, k, v = (numbers(2, number, LENGTH, size) for number in (heads, groups, groups))
    seen = window or LENGTH
    whole = attention.run_attention(q, k, v, None, 0.3, seen)
    back = torch.arange(LENGTH, device=DEVICE)[:, None] - torch.arange(LENGTH, device=DEVICE)
    hidden = (back < 0) | (back >= seen)
    mixed = F.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), ~hidden, scale=0.3, enable_gqa=True
    )
    true = mixed.transpose(1, 2)
    torch.testing.assert_close(whole.double(), true, atol=1e-6, rtol=1e-5)
    for number in (1, 11, 43):  # the newest tokens of a row of which the others are known
        assert torch.equal(
            attention.run_attention(q[:, :, -number:], k, v, None, 0.3, seen), whole[:, -number:]
        )
    for at in (0, 31, 32, 60):  # a token alone, before a cache that has room for more
        mask = torch.zeros(1, LENGTH, device=DEVICE).masked_fill(hidden[at], -torch.inf)
        one = attention.run_attention(q[:1, :, at : at + 1], k[:1], v[:1], mask, 0.3, LENGTH)
        assert torch.equal(one[:, 0], whole[:1, at])
        q_short, k_short, v_short = (x[:1, :, : at + 1] for x in (q, k, v))
        assert torch.equal(
            attention.run_attention(q_short, k_short, v_short, None, 0.3, seen), whole[:1, : at + 1]
        )
