"""Pairs of answers: what is given, what is learned of either, which rows are none, and which tokens
end an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from row_files import write_rows
from transformers import PreTrainedTokenizerFast

from lockstep.data.answers import build_answer_batch
from lockstep.data.jsonl import DataError, JsonlIndex
from lockstep.data.pair_options import PairSection
from lockstep.data.pairs import PairRows
from lockstep.data.prompts import PromptRows
from lockstep.models.tokenizer import words_tokenizer

ROWS = [
    {
        "question": f"Say {'very ' * n}{n}", "chosen": "7 " * (3 - n) + "end", "rejected": "no " * n + "way",
        "w": 4 - n, "l": 1,
    }
    for n in range(4)
]  # fmt: skip
FIELDS: dict[str, Any] = {
    "train": "rows.jsonl",
    "prompt": "{question}\n",
    "max_prompt_tokens": 64,
    "shuffle": False,
}
TALK = [{"role": "user", "content": "Say 1"}, {"role": "assistant", "content": "7 end"}]
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<turn>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = [
        text for row in ROWS for text in (row["question"] + "\n", row["chosen"], row["rejected"])
    ]
    made = words_tokenizer(words)
    made.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>", "<turn>"]})
    return made


def opened(
    folder: Path,
    tokenizer: Any,
    rows: list[dict[str, Any]],
    max_tokens: int = 64,
    /,
    **options: Any,
) -> PairRows:
    path = folder / "rows.jsonl"
    write_rows(path, rows)
    fields = {**FIELDS, **options}
    if "messages" in options:
        fields.pop("prompt")
    stops = tokenizer.convert_tokens_to_ids(["<turn>"])
    data = PairSection(**fields)
    return PairRows(JsonlIndex(path, data.bad_rows), tokenizer, data, max_tokens, stops)


def test_loss_mask_of_pair_covers_each_answer_and_its_stop_token_only(
    tmp_path: Path, tokenizer: Any
) -> None:
    batch = build_answer_batch(opened(tmp_path, tokenizer, ROWS).read_first())
    assert (len(batch), batch.group_size) == (8, 2)
    assert "score" not in batch.sample
    sequences = list(zip(batch.sequences(), batch.sequences("mask"), strict=True))
    for i, row in enumerate(ROWS):
        for (tokens, mask), name in zip(
            sequences[2 * i : 2 * i + 2], ("chosen", "rejected"), strict=True
        ):
            assert tokenizer.decode(tokens[~mask]) == row["question"] + "\n"
            assert tokenizer.decode(tokens[mask]) == row[name] + "<eos>"
            assert mask.int().diff().abs().sum() == 1


def test_pairs_come_in_the_order_of_prompts_and_with_their_scores(
    tmp_path: Path, tokenizer: Any
) -> None:
    pairs = opened(tmp_path, tokenizer, ROWS, shuffle=True, chosen_score="w", rejected_score="l")
    data = PairSection(train="rows.jsonl", prompt="{question}\n", max_prompt_tokens=64, answer="")
    prompts = PromptRows(pairs.selection.rows, tokenizer, data)
    batch = build_answer_batch(pairs.read_at(2, 5, seed=9))
    given = [
        tuple(t[~m].tolist())
        for t, m in zip(batch.sequences(), batch.sequences("mask"), strict=True)
    ]
    drawn = prompts.read_at(2, 5, seed=9)
    assert given == [prompt.tokens for prompt in drawn for _ in range(2)]
    assert batch["score"].tolist() == [
        score for prompt in drawn for score in (prompt.row["w"], 1.0)
    ]


def test_pair_prompt_and_answers_are_read_from_conversations(
    tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.chat_template = CHAT
    row = {
        "talk": TALK[:1],
        "chosen": TALK,
        "rejected": [*TALK[:1], {"role": "assistant", "content": "no way"}],
    }
    pairs = opened(tmp_path, tokenizer, [row], messages="talk")
    assert pairs[0].prompt.text == "<user>Say 1<turn><assistant>"
    assert [tokenizer.decode(answer) for answer in pairs[0].answers] == [
        "7 end<turn>",
        "no way<turn>",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": None}, "has null in the field 'chosen'"),
        ({"chosen": "way"}, "has the same chosen and rejected answer"),
        ({"chosen": TALK[:1]}, "has no final assistant answer in the field 'chosen'"),
        (
            {"rejected": ["no"]},
            ("has in the field 'rejected' a message, number 1, that is not"),
        ),
        ({"rejected": {"text": "no"}}, "has no text in the answer field 'rejected'"),
        ({"w": "4"}, "has text in the field 'w', which should be number"),
        ({"w": 10**400}, "has 1000+.* in the field 'w', which is not a finite number"),
        (
            {"w": 0.5},
            "has a chosen answer with a lower score than the rejected answer: 'w' 0.5, 'l' 1.0",
        ),
    ],
)
def test_invalid_pair_row_is_rejected_by_line_or_skipped(
    tmp_path: Path, tokenizer: Any, change: dict[str, Any], message: str
) -> None:
    rows, scores = [{**ROWS[0], **change}, *ROWS[1:]], {"chosen_score": "w", "rejected_score": "l"}
    with pytest.raises(DataError, match=rf"line 1: {message}"):
        opened(tmp_path, tokenizer, rows, **scores)
    assert len(opened(tmp_path, tokenizer, rows, bad_rows="skip", **scores)) == 3


def test_a_pair_is_as_long_as_its_longer_answer(tmp_path: Path, tokenizer: Any) -> None:
    pairs = opened(tmp_path, tokenizer, ROWS)
    lengths = [pairs[i].longest_length for i in range(4)]
    assert lengths == build_answer_batch(pairs.read_first()).lengths.view(-1, 2).amax(1).tolist()
    with pytest.raises(
        DataError, match=rf"have {lengths[3]} tokens, more than max_tokens={lengths[3] - 1}"
    ):
        opened(tmp_path, tokenizer, ROWS[3:], lengths[3] - 1)
    some = opened(tmp_path, tokenizer, ROWS, sorted(lengths)[0], overlong_prompts="skip")
    assert some.selection.overlong.count == 4 - len(some) > 0
    with pytest.raises(
        DataError, match=r"the prompt has 6 tokens, more than data\.max_prompt_tokens=5"
    ):
        opened(tmp_path, tokenizer, ROWS, max_prompt_tokens=5)
