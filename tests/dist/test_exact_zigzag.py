"""Exact models over context-parallel ranks: outputs with the bits of one process for any
layers, and its gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
import torch.distributed as dist
from exact_kinds import KINDS, build
from ranks import Layout, Ranks
from tiers import full
from tiny_models import ragged
from torch import Tensor

from lockstep.config import DType
from lockstep.core.batch import Batch
from lockstep.core.types import SamplingParams
from lockstep.distributed.ranks import ALONE, RankMesh
from lockstep.models.exact import attention
from lockstep.models.exact.attention import BLOCK
from lockstep.models.exact.model import make_exact
from lockstep.models.heads import LogitsHead
from lockstep.models.precision import open_autocast

WORLD = 4
OFTEN = ("llama", "mistral", "gemma2", "gpt-oss")
SAMPLINGS = (
    SamplingParams(1),
    SamplingParams(1, temperature=0.7),
    SamplingParams(1, temperature=1.3, top_k=40, top_p=0.9),
)
LENGTHS = ((1, 15, 16, 17, 37, 200, 2, 64, 65, 37), (300,), (1,))


def rows() -> list[Batch]:
    """Packed rows of uneven sequences, of which two share a prefix, and of one sequence alone."""
    batches = [ragged(lengths, seed) for seed, lengths in enumerate(LENGTHS)]
    first, last = batches[0].starts[[4, 9]].tolist()
    batches[0].tokens[last : last + 20] = batches[0].tokens[first : first + 20]
    # no other rank has a state to read
    few = batches[1].with_columns({"mask": batches[1].position == 299})
    return [*batches, few]


@cache
def mesh(cp: int) -> RankMesh:
    """All processes, in groups of `cp`."""
    sizes = {"dp_replicate": 1, "dp": WORLD // cp, "pp": 1, "cp": cp, "tp": 1}
    return RankMesh.from_sizes("cpu", sizes)


def compute(
    kind: str, dtype: DType, ranks: RankMesh, share: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities and entropies of each row, scored and trained; and the gradients."""
    lm = build(kind)
    head = LogitsHead(lm, ranks)
    make_exact(lm)
    outputs = list[Tensor]()
    gradients = [torch.zeros_like(parameter) for parameter in lm.parameters()]
    for batch, sampling in product(rows(), SAMPLINGS):
        row = replace(batch, sampling=sampling)
        laid = head.lay_out(row, share)
        for trained in (False, True):
            with open_autocast(torch.device("cpu"), dtype), torch.set_grad_enabled(trained):
                found = head(laid)
            assert found.logprob is not None
            assert found.entropy is not None
            outputs += [found.logprob.detach(), found.entropy.detach()]
            if trained and found.logprob.requires_grad:
                total = (found.logprob * batch["advantage"]).sum() + found.entropy.sum()
                parts = torch.autograd.grad(total, list(lm.parameters()), allow_unused=True)
                add_present(gradients, parts)
    return outputs, gradients


def add_present(gradients: list[Tensor], parts: Sequence[Tensor | None]) -> None:
    for gradient, part in zip(gradients, parts, strict=True):
        gradient += 0.0 if part is None else part


def compute_share(
    _: Layout, kind: str, dtype: DType, cp: int, block: int = BLOCK
) -> tuple[list[Tensor], list[Tensor]]:
    """The same on this rank, with gradients of all tokens; values in blocks of `block` keys."""
    attention.BLOCK = block
    try:
        outputs, gradients = compute(kind, dtype, mesh(cp))
    finally:
        attention.BLOCK = BLOCK
    for gradient in gradients:
        dist.all_reduce(gradient, group=mesh(cp).group("cp"))
    return outputs, gradients


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        case if case[0] in OFTEN else full(*case)
        for case in product(KINDS, ("fp32", "bf16"))
    ],
)  # fmt: skip
def test_context_parallel_ranks_compute_every_exact_model_with_bits_of_one_process(
    ranks: Ranks, kind: str, dtype: DType
) -> None:
    outputs, gradients = compute(kind, dtype, ALONE)
    shared, _ = compute(kind, dtype, ALONE, share=True)
    assert all(map(torch.equal, shared, outputs))
    for cp in (2, 4):
        for found, slopes in ranks.run(compute_share, kind, dtype, cp, cp=WORLD):
            assert all(map(torch.equal, found, outputs))
            pairs = zip(slopes, gradients, strict=True) if dtype == "fp32" else ()
            for new, old in pairs:
                tolerance = 2e-4 * max(1.0, float(old.abs().max()))
                torch.testing.assert_close(new, old, atol=tolerance, rtol=0.0)


def test_other_order_of_sums_in_context_parallel_attention_changes_bits(ranks: Ranks) -> None:
    outputs, _ = compute("llama", "fp32", ALONE)
    for found, _ in ranks.run(compute_share, "llama", "fp32", 2, BLOCK // 2, cp=WORLD):
        assert not all(map(torch.equal, found, outputs))
        for new, old in zip(found, outputs, strict=True):
            torch.testing.assert_close(new, old, atol=2e-5, rtol=0.0)
