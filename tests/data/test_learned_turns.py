"""Loss on all assistant turns: each is learned as if it were the last one of its conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_rows import CHAT, ask, say
from row_files import write_rows
from transformers import PreTrainedTokenizerBase

from lockstep.config import DataSection
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.data.answers import build_answer_batch
from lockstep.data.demonstrations import DemonstrationRows, TurnRows
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.rows import DataError
from lockstep.models.tokenizer import load_tokenizer

STRIPPING = CHAT.replace(
    "{{ m.content }}",
    "{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('|')[-1] }}{% endif %}",
)
"""A template that drops the thoughts of earlier turns, as Qwen3's does."""
TALKS = [
    [ask("Once"), say("upon a time")],
    [ask("Who?"), say("Lily."), ask("And?"), say("A cat, and a dog."), ask("Where?"), say("Here.")],
    [{"role": "system", "content": "Play."}, ask("So"), say("it was") | {"weight": 0}, ask("a"), say("day")],
]  # fmt: skip


@pytest.fixture
def tokenizer(assets: Path) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(assets / "models/stories260K/hf")
    tokenizer.chat_template = CHAT
    return tokenizer


def learn(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    talks: list[Any],
    kind: type[DemonstrationRows] = TurnRows,
    **options: Any,
) -> tuple[DemonstrationRows, Batch]:
    path = write_rows(folder / "talks.jsonl", [{"messages": talk} for talk in talks])
    fields = {"train": "x", "messages": "messages", "max_prompt_tokens": 128, "shuffle": False}
    data = DataSection(**{**fields, **options})
    rows = kind(JsonlIndex(path), tokenizer, data, 256)
    return rows, build_answer_batch(rows.read_first())


def test_all_assistant_turns_and_their_stop_tokens_are_learned_and_nothing_else(
    tmp_path: Path, tokenizer: Any
) -> None:
    _, batch = learn(tmp_path, tokenizer, TALKS)
    assert len(batch) == len(TALKS)
    for talk, tokens, mask in zip(TALKS, batch.sequences(), batch.sequences("mask"), strict=True):
        whole = tokenizer.apply_chat_template(talk, tokenize=False)
        assert tokens.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]
        learned = "".join(
            message["content"] + "</s>"
            for message in talk
            if message["role"] == "assistant" and message.get("weight") != 0
        )
        assert tokenizer.decode(tokens[mask]).replace("</s> ", "</s>") == learned


@pytest.mark.parametrize("template", [CHAT, STRIPPING])
def test_each_turn_has_the_tokens_that_it_has_as_last_turn(
    tmp_path: Path, tokenizer: Any, template: str
) -> None:
    tokenizer.chat_template = template
    talk = [
        ask("Who?"),
        say("Hm|Lily."),
        ask("And?"),
        say("Oh|A cat."),
        ask("Where?"),
        say("Here."),
    ]
    _, batch = learn(tmp_path, tokenizer, [talk])
    _, single = learn(tmp_path, tokenizer, [talk[:2], talk[:4], talk], DemonstrationRows)
    runs = [
        (tuple(tokens[: end + 1].tolist()), int(mask[: end + 1].flip(0).cumprod(0).sum()))
        for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True)
        for end in range(len(mask))
        if mask[end] and not mask[end + 1 : end + 2].any()
    ]
    assert runs == [
        (tuple(tokens.tolist()), int(mask.sum()))
        for tokens, mask in zip(single.sequences(), single.sequences("mask"), strict=True)
    ]


def test_template_that_rewrites_earlier_turns_is_reported_and_splits_the_conversation(
    tmp_path: Path, tokenizer: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer.chat_template = STRIPPING
    talks = [TALKS[0], [ask("Who?"), say("Hm|Lily."), ask("And?"), say("A cat.")]]
    rows, batch = learn(tmp_path, tokenizer, talks)
    assert len(rows) == 2
    assert len(batch) == 3
    assert "rewrites earlier turns in 1 of the first 2 conversations" in capfd.readouterr().err


def test_conversation_with_one_bad_turn_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    bad = [ask("Who?"), say("Li</s>ly."), ask("And?"), say("A cat.")]
    with pytest.raises(DataError, match="line 1: has </s>, a stop token of the model, inside"):
        learn(tmp_path, tokenizer, [bad])
    rows, _ = learn(tmp_path, tokenizer, [bad, TALKS[1]], bad_rows="skip")
    assert rows.selection.bad.count == 1


def test_all_turns_option_without_conversations_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(InputError, match="all_turns requires whole conversations"):
        learn(tmp_path, tokenizer, TALKS, messages=None, prompt="{messages}")
