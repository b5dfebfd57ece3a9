"""Prefixes that sequences share are computed once, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY
from torch import Tensor
from transformers import AutoModelForCausalLM

from lockstep.core.batch import Batch
from lockstep.models.attention import PackedLayout
from lockstep.models.exact.attention import KEYS, BlockwiseKernel
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.models.kernels import FUSED
from lockstep.models.load import load_backbone, load_causal_lm
from lockstep.models.prefixes import PathTree

HEADS = 4
GROUPS = 2
SIZE = 8


@st.composite
def trees(draw: st.DrawFn) -> list[list[int]]:
    """Sequences of which many begin with parts of others; some are parts of others, or equal."""
    rows: list[list[int]] = []
    for _ in range(draw(st.integers(1, 8))):
        known = draw(st.sampled_from(rows)) if rows else []
        prefix = known[: draw(st.integers(0, len(known)))]
        count = draw(st.integers(0 if prefix else 1, 70))
        seed = draw(st.integers(0, 99))
        tokens = torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))
        rows.append(prefix + tokens.tolist())
    return draw(st.permutations(rows))


def batch_of(rows: list[list[int]]) -> Batch:
    tokens = torch.tensor([token for row in rows for token in row])
    bare = Batch(tokens, torch.tensor([len(row) for row in rows]))
    draw = torch.Generator().manual_seed(0)
    mask = (torch.rand(len(tokens), generator=draw) < 0.7) & (bare.position > 0)
    return bare.with_columns({"mask": mask}).keep_places()


@given(trees())
def test_each_distinct_prefix_is_computed_once_at_its_depth(rows: list[list[int]]) -> None:
    batch = batch_of(rows)
    tree = PathTree.from_batch(batch)
    distinct = {tuple(row[:count]) for row in rows for count in range(1, len(row) + 1)}
    assert tree.source_index.numel() == len(distinct)
    source_N = tree.source_index[tree.computed_index]
    assert torch.equal(batch.tokens[source_N], batch.tokens)
    assert torch.equal(batch.position[source_N], batch.position)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("softcap", [None, 5.0])
@settings(max_examples=15)
@given(trees())
def test_exact_attention_gives_shared_prefixes_the_same_bits(
    softcap: float | None, window: int | None, rows: list[list[int]]
) -> None:
    kernel = BlockwiseKernel(softcap, torch.linspace(-1.0, 1.0, HEADS) if softcap else None)
    batch = batch_of(rows)
    tree = PathTree.from_batch(batch)
    draw = torch.Generator().manual_seed(1)
    count = tree.source_index.numel()
    shapes = [(1, heads, count, SIZE) for heads in (HEADS, GROUPS, GROUPS)]
    computed = [torch.randn(shape, generator=draw, requires_grad=True) for shape in shapes]
    alone = [x[:, :, tree.computed_index] for x in computed]
    shared = PackedLayout.from_batch(batch, KEYS, tree)
    own = PackedLayout.from_batch(batch, KEYS)
    found = shared.attend(kernel, 0, *computed, 0.3, window)[0][tree.computed_index]  # type: ignore[misc]
    expected = own.attend(kernel, 0, *alone, 0.3, window)[0]  # type: ignore[misc]
    assert torch.equal(found, expected)
    weights = torch.randn(found.shape, generator=draw)
    gradients = torch.autograd.grad((found * weights).sum(), computed)
    others = torch.autograd.grad((expected * weights).sum(), computed)
    for gradient, other in zip(gradients, others, strict=True):
        assert (gradient - other).abs().max() <= 2e-6 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("window", [None, 300])
def test_fused_attention_of_long_branches_matches_separate_sequences(window: int | None) -> None:
    prefix = list(range(50))
    batch = batch_of([prefix + [number] * 600 for number in range(2)])
    tree = PathTree.from_batch(batch)
    draw = torch.Generator().manual_seed(4)
    computed = [
        torch.randn((1, heads, tree.source_index.numel(), SIZE), generator=draw)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    query, key, value = computed
    shared = PackedLayout.from_batch(batch, tree=tree)
    found = shared.attend(FUSED, 0, query, key, value, 0.3, window)[0][tree.computed_index]
    query, key, value = (x[:, :, tree.computed_index] for x in computed)
    expected = PackedLayout.from_batch(batch).attend(FUSED, 0, query, key, value, 0.3, window)[0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0.0)


PROMPTS = [[5, 9, 4, 7, 3] * 4, [5, 9, 4, 7, 3] * 3 + [8]]
"""Prompts of 20 and 16 tokens, which share 15."""
RESPONSES = [[11, 12, 13], [11, 12, 40, 41], [50] * 20, [11]]


def responses() -> Batch:
    """Four responses to each of two prompts, and an episode's next turn."""
    rows = [prompt + response for prompt in PROMPTS for response in RESPONSES]
    rows.append(rows[2] + [6, 6, 9])
    batch = batch_of(rows)
    draw = torch.Generator().manual_seed(2)
    return batch.with_columns({"weight": torch.randn(batch.tokens.numel(), generator=draw)})


def gradients_of(head: LogitsHead | ValueHead, shares: bool) -> dict[str, Tensor]:
    """Gradients of the weighted sum of the outputs at masked tokens, by parameter."""
    batch = responses()
    outputs = head(head.lay_out(batch, shares))
    column = outputs.value if isinstance(head, ValueHead) else outputs.logprob
    head.zero_grad()
    (column * batch["weight"] * batch.mask).sum().backward()
    return {name: one.grad for name, one in head.named_parameters() if one.grad is not None}


def float64_gradients(folder: str) -> dict[str, Tensor]:
    """The policy's gradients by transformers in float64, one sequence at a time."""
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    for row in responses().split(1):
        logprob_TV = lm(row.tokens[None]).logits[0].log_softmax(-1)
        chosen_T = logprob_TV[:-1].gather(1, row.tokens[1:, None])[:, 0]
        (chosen_T * row["weight"][1:] * row.mask[1:]).sum().backward()
    return {f"lm.{name}": one.grad for name, one in lm.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen2 window", "gpt neox"])
def test_policy_gradients_with_shared_prefixes_match_float64_of_separate_sequences(
    models: Callable[..., Path], architecture: str
) -> None:
    folder = str(models(architecture))
    right = float64_gradients(folder)
    found = gradients_of(LogitsHead(load_causal_lm(folder)), shares=True)
    assert found.keys() == right.keys()
    largest = max(one.abs().max() for one in right.values())
    for name, gradient in found.items():
        assert (gradient.double() - right[name]).abs().max() < 2e-6 * largest


@pytest.mark.parametrize("kind", ["policy", "critic"])
def test_gradients_with_shared_prefixes_are_deterministic_and_match_unshared_ones(
    models: Callable[..., Path], kind: str
) -> None:
    folder = str(models("qwen2"))

    def build() -> LogitsHead | ValueHead:
        if kind == "policy":
            return LogitsHead(load_causal_lm(folder))
        return ValueHead(load_backbone(folder), seed=0)

    found = gradients_of(build(), shares=True)
    again = gradients_of(build(), shares=True)
    alone = gradients_of(build(), shares=False)
    largest = max(one.abs().max() for one in alone.values())
    for name, gradient in found.items():
        assert torch.equal(gradient, again[name])
        assert (gradient - alone[name]).abs().max() < 1e-6 * largest
