"""Demonstrations: what is given, what is learned, and where one ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from row_files import write_rows
from transformers import PreTrainedTokenizerFast

from lockstep.config import DataSection
from lockstep.data.answers import build_answer_batch
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.jsonl import DataError, JsonlIndex
from lockstep.data.prompts import PromptRows
from lockstep.models.tokenizer import load_tokenizer, words_tokenizer

ROWS = [{"question": f"Say {'very ' * n}{n}", "answer": "7 " * (3 - n) + "end"} for n in range(4)]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return words_tokenizer(
        [text for row in ROWS for text in (row["question"] + "\n", row["answer"])]
    )


@pytest.fixture
def index(tmp_path: Path) -> JsonlIndex:
    return JsonlIndex(write_rows(tmp_path / "rows.jsonl", ROWS))


def section(**options: Any) -> DataSection:
    fields = {
        "train": "rows.jsonl",
        "prompt": "{question}\n",
        "max_prompt_tokens": 64,
        "shuffle": False,
        **options,
    }
    return DataSection(**fields)


def test_loss_mask_covers_completion_and_stop_token_only(index: Any, tokenizer: Any) -> None:
    batch = build_answer_batch(
        DemonstrationRows(index, tokenizer, section(), max_tokens=64).read_first()
    )
    rows = zip(ROWS, batch.sequences(), batch.sequences("mask"), strict=True)
    for row, tokens, mask in rows:
        assert tokenizer.decode(tokens[~mask]) == row["question"] + "\n"
        assert tokenizer.decode(tokens[mask]) == row["answer"] + "<eos>"
        # all of the prompt stands before all of the completion
        assert mask.int().diff().abs().sum() == 1


def test_demonstration_prompt_has_same_tokens_as_sampled_prompt(index: Any, assets: Path) -> None:
    llama = load_tokenizer(assets / "models/stories260K/hf")
    demonstrations, prompts = (
        DemonstrationRows(index, llama, section(), 512),
        PromptRows(index, llama, section()),
    )
    for i in range(4):
        assert demonstrations[i].prompt == prompts[i]
        assert llama.bos_token_id not in demonstrations[i].answers[0]
        assert demonstrations[i].answers[0][-1] == llama.eos_token_id


def test_over_long_rows_can_be_skipped_and_are_counted(index: Any, tokenizer: Any) -> None:
    lengths = [
        DemonstrationRows(index, tokenizer, section(), 64)[i].longest_length for i in range(4)
    ]
    limit = sorted(lengths)[1]
    rows = DemonstrationRows(index, tokenizer, section(overlong_prompts="skip"), limit)
    assert [rows[i].longest_length for i in range(len(rows))] == [
        length for length in lengths if length <= limit
    ]
    assert rows.selection.overlong.count == rows.selection.skipped_count == 4 - len(rows) > 0


CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [
    {"role": "user", "content": "Say 1"},
    {"role": "assistant", "content": "7 7 end"},
    {"role": "user", "content": "Say very 2"},
    {"role": "assistant", "content": "7 end"},
]


@pytest.fixture
def chatting(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>", "<turn>"]})
    tokenizer.chat_template = CHAT
    return tokenizer


def talks(folder: Path, *rows: Any) -> JsonlIndex:
    return JsonlIndex(write_rows(folder / "talks.jsonl", ({"talk": row} for row in rows)))


def chat_section(**options: Any) -> DataSection:
    return DataSection(
        train="talks.jsonl", messages="talk", max_prompt_tokens=64, shuffle=False, **options
    )


def test_an_answer_ends_with_a_token_at_which_the_model_stops(
    tmp_path: Path, index: Any, chatting: Any
) -> None:
    """The template's, where it is one of those; without a template the end of the sequence."""
    turn = chatting.convert_tokens_to_ids("<turn>")
    rows = talks(tmp_path, TALK)
    assert (
        DemonstrationRows(rows, chatting, chat_section(), 64)[0].answers[0][-1]
        == chatting.eos_token_id
    )
    assert (
        DemonstrationRows(index, chatting, section(), 64, [turn])[0].answers[0][-1]
        == chatting.eos_token_id
    )
    assert (
        DemonstrationRows(index, chatting, section(chat=True), 64, [turn])[0].answers[0][-1] == turn
    )
    chatting.chat_template = "{{ raise_exception('no') }}"
    assert (
        DemonstrationRows(index, chatting, section(), 64, [turn])[0].answers[0][-1]
        == chatting.eos_token_id
    )


ASKED = [{"role": "user", "content": "Say 2"}]
REPLY = [{"role": "assistant", "content": "7 end"}]
CHAT_ROW = {"prompt": ASKED, "completion": REPLY, "info": {"truth": "7 end", "score": 3}}


def write_row(tmp_path: Path, row: dict[str, Any]) -> JsonlIndex:
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return JsonlIndex(path)


def test_messages_in_prompt_and_completion_are_read_by_the_chat_template(
    tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    data = section(prompt="{question}", messages="prompt", completion="{completion}")
    [row] = DemonstrationRows(write_row(tmp_path, CHAT_ROW), tokenizer, data, 64).read_first()
    assert (row.prompt.text, tokenizer.decode(list(row.answers[0]))) == ("Say 2\n", "7 end<eos>")


def test_dotted_field_names_read_nested_objects(tmp_path: Path, tokenizer: Any) -> None:
    data = section(prompt="Say {info.score}", completion="{info.truth}")
    [row] = DemonstrationRows(write_row(tmp_path, CHAT_ROW), tokenizer, data, 64).read_first()
    assert (row.prompt.text, tokenizer.decode(list(row.answers[0]))) == ("Say 3", "7 end<eos>")
    with pytest.raises(
        DataError, match=r"no field 'info.other', which data.prompt='{info.other}' needs"
    ):
        DemonstrationRows(
            write_row(tmp_path, CHAT_ROW), tokenizer, section(prompt="{info.other}"), 64
        )
