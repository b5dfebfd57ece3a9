"""The column recomputed from a side's own logits: Lockstep's scoring agrees, and a wrong column is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.distributed.sampling import draw, token_scores
from lockstep.types import SamplingParams
from lockstep_doctor.column import describe_column

TOKENS, VOCABULARY = 40, 50


def sample(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [M, V], and tokens sampled from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(TOKENS, VOCABULARY, generator=generator)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_sampling_and_scoring_of_lockstep_have_no_difference(seed: int) -> None:
    logits, _ = sample(seed)
    uniform = torch.rand(TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).clamp(
        1e-9, 1 - 1e-9
    )
    ids, drawn = draw(logits, uniform, SamplingParams(1))
    for column in (drawn, token_scores(logits, ids, SamplingParams(1))[0]):
        assert " in 0 of 40 tokens" in describe_column(logits, ids, column, 2e-4)


@given(st.integers(0, 1000), st.sampled_from([0.5, 0.7, 1.3, 2.0]), st.sampled_from([0.7, 0.8, 0.9]))
@settings(max_examples=20, deadline=None)
def test_settings_of_lockstep_are_named(seed: int, temperature: float, top_p: float) -> None:
    logits, _ = sample(seed)
    for sampling, said in (
        (SamplingParams(1, temperature), f"that at temperature {temperature:g} (100% of it)"),
        (SamplingParams(1, 1.0, 0, top_p), f"that with top_p {top_p:g} (100% of it)"),
    ):
        ids, column = draw(logits, torch.full((TOKENS,), 0.5, dtype=torch.float64), sampling)
        assert said in describe_column(logits, ids, column, 2e-4)


def right(logits: Tensor, ids: Tensor) -> Tensor:
    """The column that the logits imply."""
    return logits.double().log_softmax(1).gather(1, ids[:, None])[:, 0]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda z, i: right(z / 0.7, i), "that at temperature 0.7"),
        (lambda z, i: right(z, i).bfloat16(), "its own numbers in bfloat16"),
        (lambda z, i: right(z.bfloat16(), i), "that of logits in bfloat16"),
        (lambda z, i: right(z.half(), i), "that of logits in float16"),
        (lambda z, i: right(z, i).roll(1), "the position before"),
        (lambda z, i: right(z, i).roll(-1), "the position behind"),
        (lambda z, i: right(z, i.roll(-1)), "the token +1"),
        (lambda z, i: z.gather(1, i[:, None])[:, 0], "the logit itself"),
        (lambda z, i: right(z, i).exp(), "the probability"),
    ],
)
def test_a_wrong_column_is_said_to_equal_what_it_is(column: Callable[[Tensor, Tensor], Tensor], said: str) -> None:
    logits, ids = sample()
    found = describe_column(logits, ids, column(logits, ids), 2e-4)
    assert found.startswith("logits → column: off by ")
    assert said in found.partition("; it equals ")[2]


def test_single_tokens_are_counted() -> None:
    logits, ids = sample()
    column = right(logits, ids)
    column[[5, 9]] = -20.0
    assert describe_column(logits, ids, column, 2e-4).endswith(" nats in 2 of 40 tokens, the first 5")


def test_a_column_of_another_length_is_refused() -> None:
    logits, ids = sample()
    with pytest.raises(ValueError, match="39 log-probabilities for 40 tokens"):
        describe_column(logits, ids, torch.zeros(TOKENS - 1), 2e-4)
