"""Rows of the sample log: what each token was worth, in few digits, and text that adds up to the
response.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from lockstep.core.batch import Batch
from lockstep.core.types import Prompt
from lockstep.models.tokenizer import words_tokenizer
from lockstep.rollouts.rollout import RolloutCollector, Rollouts
from lockstep.rollouts.samples import round_significant, sample_rows


class Answers:
    """Prompts whose right answer is their text, doubled."""

    def answer(self, prompt: Prompt) -> str:
        return prompt.text * 2


def decoder(tokenizer: PreTrainedTokenizerBase) -> Any:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


def rows_of(
    responses: Sequence[Sequence[int]],
    decode: Any,
    count: int = 8,
    score: torch.Tensor | None = None,
    **columns: torch.Tensor,
) -> list[dict[str, Any]]:
    """Samples of responses to a prompt of two tokens."""
    lengths = torch.tensor([2 + len(response) for response in responses])
    tokens = torch.tensor([token for response in responses for token in (0, 0, *response)])
    mask = torch.cat([torch.arange(int(length)) >= 2 for length in lengths])
    zeros = torch.zeros(len(tokens))
    sampled = Batch(tokens, lengths, {"mask": mask, "sampler_logprob": zeros}, {
        "score": torch.full((len(lengths),), 0.1) if score is None else score, "truncated": lengths > 3,
    })  # fmt: skip
    used = sampled.with_columns(
        {"old_logprob": zeros, **columns}, {"shaped_score": sampled["score"] - 1}
    )
    prompts = [Prompt(f"t:{i}", f"p{i}", (0, 0), {}) for i in range(len(responses))]
    experience = RolloutCollector(cast(Any, None), cast(Any, Answers()), cast(Any, None), decode, 0)
    texts = [decode(response) for response in responses]
    return sample_rows(Rollouts(sampled, prompts, texts), used, experience, count)


def letters(ids: Sequence[int]) -> str:
    return "".join("abcdefgh"[token] for token in ids)


def test_sample_row_columns_cover_only_response_tokens() -> None:
    value = torch.arange(9.0) / 3
    one, two = rows_of([[1, 2], [3, 4, 5]], letters, old_value=value)
    assert one["token"]["text"] == ["b", "c"]
    assert one["token"]["value"] == [0.66667, 1.0]
    assert two["token"]["value"] == [2.0, 2.3333, 2.6667]
    assert "advantage" not in one["token"]
    about = {
        name: value for name, value in two.items() if name not in ("token", "score", "shaped_score")
    }
    assert about == {
        "id": "t:1", "prompt": "p1", "response": "def", "answer": "p1p1", "logged_as": ("next in "
                                                                                       "order"), "tokens": 3,
        "truncated": True,
    }  # fmt: skip
    assert two["shaped_score"] == -0.9


def test_logprob_gap_is_computed_before_rounding() -> None:
    near = torch.full((4,), -12.345678)
    (row,) = rows_of([[1, 2]], letters, old_logprob=near, sampler_logprob=near - 2e-6)
    assert row["token"]["logprob"] == [-12.346] * 2
    assert row["token"]["gap"] == pytest.approx([2e-6] * 2, rel=0.5)
    assert row["token"]["gap"][0] > 0


TEXTS = ["Ada has 5 coins.\n", "12+30=42\n#### 42", "  two spaces"]


@pytest.mark.parametrize("text", TEXTS)
def test_token_texts_concatenate_to_the_response(text: str) -> None:
    tokenizer = words_tokenizer(TEXTS)
    ids = tokenizer(text)["input_ids"]
    (row,) = rows_of([[*cast(Any, ids), cast(int, tokenizer.eos_token_id)]], decoder(tokenizer))
    assert "".join(row["token"]["text"]) == row["response"] == text
    assert row["token"]["text"][-1] == ""


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_rounding_keeps_five_digits_and_prints_no_more(values: list[float]) -> None:
    for value, short in zip(values, round_significant(torch.tensor(values)), strict=True):
        if not math.isfinite(value):
            assert short == value or (math.isnan(short) and math.isnan(value))
            continue
        assert short == pytest.approx(value, rel=0.6e-4, abs=1e-22)
        assert len(
            json.dumps(short).replace("-", "").split("e")[0].replace(".", "").strip("0")
        ) <= max(5, len(str(round(abs(value)))))
