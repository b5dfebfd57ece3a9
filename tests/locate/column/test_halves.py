"""The column recomputed from a side's own logits: Lockstep's scoring agrees, and a broken stage is the one named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.distributed.sampling import draw, token_scores
from lockstep.types import SamplingParams
from lockstep_doctor.column.halves import Processing, Stages, compare_stages, process, recompute

TOKENS, VOCABULARY = 40, 50


def sample(processing: Processing, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [M, V], and tokens sampled from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(TOKENS, VOCABULARY, generator=generator)
    probability = process(logits, logits.argmax(1), processing).softmax(1)
    return logits, torch.multinomial(probability, 1, generator=generator)[:, 0]


@given(
    st.integers(0, 1000),
    st.floats(0.3, 3),
    st.integers(0, VOCABULARY),
    st.floats(0.1, 1),
)
@settings(max_examples=40, deadline=None)
def test_sampling_and_scoring_of_lockstep_have_no_difference(
    seed: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits, _ = sample(Processing(), seed)
    sampling = SamplingParams(1, temperature, top_k, top_p)
    uniform = torch.rand(TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).clamp(
        1e-9, 1 - 1e-9
    )
    ids, drawn = draw(logits, uniform, sampling)
    processing = Processing(temperature=temperature, top_k=top_k, top_p=top_p)
    for column in (drawn, token_scores(logits, ids, sampling)[0]):
        assert compare_stages(Stages(logits, column=column), ids, processing) == []


def test_stages_are_their_formulas() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    ids = torch.tensor([1])
    assert process(logits, ids, Processing(temperature=0.5))[0].tolist() == [4.0, 2.0, 0.0, -2.0]
    assert process(logits, ids, Processing(top_k=2))[0].tolist() == [2.0, 1.0, -math.inf, -math.inf]
    assert process(logits, ids, Processing(min_p=0.2))[0].tolist() == [2.0, 1.0, -math.inf, -math.inf]
    assert process(logits, ids, Processing(top_p=0.6))[0].tolist() == [2.0, 1.0, -math.inf, -math.inf]
    assert process(logits, torch.tensor([3]), Processing(top_k=1))[0].tolist() == [2.0, -math.inf, -math.inf, -1.0]
    twice, again = logits.repeat(2, 1), torch.tensor([0, 3])
    assert process(twice, again, Processing(repetition_penalty=2.0))[1].tolist() == [1.0, 1.0, 0.0, -1.0]
    assert process(twice, again, Processing(frequency_penalty=0.5))[1].tolist() == [1.5, 1.0, 0.0, -1.0]
    prompt = torch.tensor([3])
    assert process(logits, ids, Processing(repetition_penalty=2.0), prompt)[0].tolist() == [2.0, 1.0, 0.0, -2.0]
    assert process(logits, ids, Processing(presence_penalty=1.0), prompt)[0].tolist() == [2.0, 1.0, 0.0, -1.0]


USED = Processing(temperature=0.7, top_p=0.9)


def right(logits: Tensor, ids: Tensor) -> Tensor:
    """The column that the logits imply."""
    column = recompute(logits, ids, USED).column
    assert column is not None
    return column


def _whole(logits: Tensor, ids: Tensor) -> Stages:
    return recompute(logits, ids, USED)


BROKEN: tuple[tuple[str, Callable[[Stages], Stages], str, str], ...] = (
    ("processed", lambda s: replace(s, processed=s.logits.double() / 0.8), "logits", "processed logits"),
    ("logsumexp", lambda s: replace(s, logsumexp=s.logsumexp + 0.1), "processed logits", "logsumexp"),  # type: ignore[operator]
    ("gathered", lambda s: replace(s, gathered=s.gathered.roll(1)), "logsumexp", "gathered value"),  # type: ignore[union-attr]
    ("column", lambda s: replace(s, column=s.column.roll(1)), "gathered value", "column"),  # type: ignore[union-attr]
)


@pytest.mark.parametrize(("stage", "damage", "start", "end"), BROKEN)
def test_only_the_broken_stage_differs(stage: str, damage: Callable[[Stages], Stages], start: str, end: str) -> None:
    logits, ids = sample(USED)
    broken = damage(_whole(logits, ids))
    right = {"processed": ("logsumexp", "gathered", "column"), "logsumexp": ("column",), "gathered": ("column",)}
    follow = (
        recompute(broken.processed, ids, Processing())
        if stage == "processed" and broken.processed is not None
        else None
    )
    for name in right.get(stage, ()):
        assert broken.gathered is not None
        assert broken.logsumexp is not None
        value = broken.gathered - broken.logsumexp if follow is None else getattr(follow, name)
        broken = replace(broken, **{name: value})
    found = compare_stages(broken, ids, USED)
    assert [(one.start, one.end) for one in found] == [(start, end)]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda z, i: recompute(z, i, replace(USED, temperature=1.0)).column, "without temperature"),
        (lambda z, i: recompute(z, i, replace(USED, top_p=1.0)).column, "without top_p"),
        (lambda z, i: recompute(z, i, Processing()).column, "of the raw logits"),
        (lambda z, i: right(z, i).bfloat16(), "its own numbers in bfloat16"),
        (lambda z, i: recompute(z.bfloat16(), i, USED).column, "that of logits in bfloat16"),
        (lambda z, i: right(z, i).roll(1), "the position before"),
        (lambda z, i: recompute(z, i.roll(-1), USED).column, "the token +1"),
        (lambda z, i: recompute(z, i, USED).gathered, "the logit itself"),
    ],
)
def test_a_wrong_column_is_said_to_equal_what_it_is(column: Callable[[Tensor, Tensor], Tensor], said: str) -> None:
    logits, ids = sample(USED)
    (found,) = compare_stages(Stages(logits, column=column(logits, ids)), ids, USED)
    assert (found.start, found.end) == ("logits", "column")
    assert any(said in one for one in found.equals)
    assert said in str(found)


def test_single_tokens_are_named() -> None:
    logits, ids = sample(USED)
    column = recompute(logits, ids, USED).column
    assert column is not None
    column[[5, 9]] = -20.0
    (found,) = compare_stages(Stages(logits, column=column), ids, USED)
    assert found.tokens.nonzero()[:, 0].tolist() == [5, 9]


def test_a_column_of_another_length_is_refused() -> None:
    logits, ids = sample(USED)
    with pytest.raises(ValueError, match="column has shape \\[39\\] for 40 tokens"):
        compare_stages(Stages(logits, column=torch.zeros(TOKENS - 1)), ids, USED)
