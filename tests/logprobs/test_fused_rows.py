"""Triton's kernels over logits against float64, and a row's bits in any company."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import dense
import pytest
import torch
from fused_device import BF16, DEVICE, MARKS
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded import GRADIENT, VALUE, close, random, random_tokens
from torch import Tensor

from lockstep_logprobs import Scoring, gradient, vocab, vocab_logprobs
from lockstep_logprobs.fused import rows as fused
from lockstep_logprobs.kernel import runs_fused
from lockstep_logprobs.shard import Shard
from lockstep_logprobs.softmax import RowSums

pytestmark = MARKS

TEMPERATURE = 0.7
TILES = (1, 2, 7, 33, 4095, 4096, 4097, 9001)
"""Columns: one, odd numbers, and what ends just before, at and after a tile."""


@st.composite
def examples(draw: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits [M, v] with equal, excluded and large numbers, tokens [M, K], some outside the
    vocabulary, and a floor.
    """
    rows, columns, seed = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from(TILES)),
        draw(st.integers(0, 2**16)),
    )
    logits = random(rows, columns, seed=seed, scale=draw(st.sampled_from([0.0, 1.0, 4.0])))
    logits = logits + draw(st.sampled_from([0.0, -60.0, 60.0]))
    logits[random(rows, columns, seed=seed + 1) > draw(st.sampled_from([1.0, 99.0]))] = -torch.inf
    logits[:, seed % columns] = logits[0, 0].nan_to_num(neginf=1.0)  # no row is without a token
    logits = logits.to(draw(st.sampled_from([torch.float32, torch.bfloat16])))
    token = random_tokens(rows, draw(st.integers(0, 5)), vocabulary=columns + 2, seed=seed) - 1
    kept = draw(st.none() | st.integers(1, columns))
    floor = None if kept is None else logits.float().topk(kept).values[:, -1]  # a view with gaps
    return logits, token, floor


def reference(logits: Tensor, token: Tensor, floor: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropy and the gradient of `weigh`, in float64."""
    leaf = logits.double().cpu().requires_grad_()
    inside = leaf if floor is None else leaf.masked_fill(leaf < floor.cpu()[:, None], -torch.inf)
    logprob, entropy = (
        dense.picked_logprobs(inside / TEMPERATURE, token.cpu()),
        -dense.sum_p_log_p(inside / TEMPERATURE),
    )
    weigh(logprob, entropy).backward()
    assert leaf.grad is not None
    return logprob.detach(), entropy.detach(), leaf.grad


def weigh(logprob: Tensor, entropy: Tensor) -> Tensor:
    """A loss of both; tokens of no probability are left out."""
    weight = random(*logprob.shape, seed=1, scale=1.0).to(logprob)
    return (weight * logprob.masked_fill(logprob.isneginf(), 0.0)).sum() + 0.3 * entropy.sum()


@settings(max_examples=40)
@given(example=examples())
def test_fused_row_logprobs_and_gradients_match_float64(example: Any) -> None:
    logits, token = example[0].to(DEVICE), example[1].to(DEVICE)
    floor = None if example[2] is None else example[2].to(DEVICE)
    leaf = logits.clone().requires_grad_()
    logprob, entropy = vocab_logprobs(
        leaf, token, Scoring(temperature=TEMPERATURE, entropy=True), floor
    )
    assert entropy is not None
    weigh(logprob, entropy).backward()
    assert leaf.grad is not None
    expected_logprob, expected_entropy, expected = reference(logits, token, floor)
    size = max(1.0, logits.nan_to_num(neginf=0.0).abs().max().item() / 16) / TEMPERATURE
    close(logprob.cpu(), expected_logprob, atol=size * VALUE["atol"], rtol=VALUE["rtol"])
    close(entropy.cpu(), expected_entropy, atol=size * VALUE["atol"], rtol=VALUE["rtol"])
    rounding = BF16 if logits.dtype == torch.bfloat16 else 0.0
    close(
        leaf.grad.cpu(),
        expected,
        atol=size * GRADIENT["atol"],
        rtol=size * GRADIENT["rtol"] + rounding,
    )


@pytest.mark.parametrize(
    "bounds", [(0, 1, 9001), (0, 4500, 9001), (0, 4096, 8192, 9001), (0, 0, 9001)], ids=str
)
def test_fused_row_sums_of_shards_merge_to_full_row_sums(bounds: tuple[int, ...]) -> None:
    logits, token = random(3, 9001).to(DEVICE), random_tokens(3, 2, vocabulary=9001).to(DEVICE)
    parts, picked = list[Tensor](), torch.zeros(3, 2, device=DEVICE)
    for start, end in itertools.pairwise(bounds):
        sums, own = fused.row_sums(
            logits[:, start:end], token, None, start, TEMPERATURE, True, None, False
        )
        parts, picked = [*parts, sums], picked + own
    merged = RowSums.from_rows(torch.stack(parts, -1)).merge_tiles(TEMPERATURE)
    assert merged.weighted is not None
    d = (logits - logits.amax(1, keepdim=True)).double() / TEMPERATURE
    close(merged.total, d.exp().sum(1), rtol=2e-6, atol=0.0)
    close(merged.weighted, (d.exp() * d).sum(1), rtol=2e-6, atol=0.0)
    assert torch.equal(merged.maximum, logits.amax(1))
    assert torch.equal(picked, logits.gather(1, token))


def test_row_invariant_sums_over_a_group_are_refused_by_name() -> None:
    group: Any = object()  # refused before it is asked for anything
    scoring = Scoring(shard=Shard(0, group), row_invariant=True)
    with pytest.raises(ValueError, match="works only on CPUs"):
        vocab_logprobs(
            random(3, 9).to(DEVICE), torch.zeros(3, 1, dtype=torch.long).to(DEVICE), scoring
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [5003, 8192])
def test_fused_logprob_bits_do_not_depend_on_other_rows_or_address(
    columns: int, dtype: torch.dtype
) -> None:
    """Each row alone, as a part of a batch, and where its memory begins anywhere."""
    logits, token = (
        random(6, columns, scale=3.0).to(DEVICE, dtype),
        random_tokens(6, 1, vocabulary=columns).to(DEVICE),
    )
    scoring = Scoring(entropy=True)
    together = vocab.score_vocab(logits, token, scoring)
    shifted = torch.empty(6, columns + 3, dtype=dtype, device=DEVICE)[:, 3:].copy_(logits)
    for row in range(6):
        for one in (logits[row : row + 1].clone(), logits[row : row + 1], shifted[row : row + 1]):
            alone = vocab.score_vocab(one, token[row : row + 1], scoring)
            assert torch.equal(alone.logprob[0], together.logprob[row])
            assert alone.entropy is not None
            assert together.entropy is not None
            assert torch.equal(alone.entropy[0], together.entropy[row])


@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning"
)  # NumPy says so where a GPU says nothing
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 4999])
def test_nan_or_inf_logit_gives_nan_logprob_and_gradient_in_its_row(
    wrong: float, column: int
) -> None:
    logits = random(2, 5003)
    logits[1, column] = wrong
    leaf = logits.to(DEVICE).requires_grad_()
    logprob, entropy = vocab_logprobs(
        leaf, torch.full((2, 1), 7, device=DEVICE), Scoring(entropy=True)
    )
    assert entropy is not None
    assert logprob.isnan().tolist() == [[False], [True]]
    assert entropy.isnan().tolist() == [False, True]
    logprob.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isnan().any(1).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_overwrite_writes_same_gradient_over_logits_and_blocks_reuse(
    dtype: torch.dtype,
) -> None:
    source, token = (
        random(3, 5003).to(DEVICE, dtype),
        torch.tensor([[7, 7], [0, 9], [5002, 1]], device=DEVICE),
    )
    gradients = []
    for overwrite in (False, True):
        leaf = source.clone().requires_grad_()
        logits = leaf * 1.0
        logprob, _ = vocab_logprobs(logits, token, Scoring(overwrite=overwrite))
        logprob.sum().backward(retain_graph=True)
        assert leaf.grad is not None
        gradients.append(leaf.grad)
        assert torch.equal(logits, leaf) != overwrite
    assert torch.equal(*gradients)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprob.sum().backward()


def test_fused_row_kernels_skip_tensor_subclasses_and_match_eager_signatures() -> None:
    """What only looks like a tensor with memory, such as a fake, goes through PyTorch's own
    operations.
    """
    assert runs_fused(torch.zeros(1, device=DEVICE))
    assert not runs_fused(torch.zeros(1).as_subclass(Subclass))
    pairs: tuple[tuple[Any, Any], ...] = (
        (vocab._row_sums, fused.row_sums),
        (vocab._logits_gradient, fused.logits_gradient),
        (vocab._write_gradient, fused.write_gradient),
    )
    for eager, kernel in pairs:
        assert inspect.signature(eager) == inspect.signature(kernel)
    assert len(gradient.RowGradient.SCHEMA.split(",")) == 7


class Subclass(Tensor): ...
