"""Chat templates and tokenizers of strangers end in time, and the error names the row."""

from __future__ import annotations

from pathlib import Path

import pytest
from row_files import write_rows
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lockstep.config import DataSection
from lockstep.data import limits, prompts
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.messages import ChatTemplateError, render_prompt
from lockstep.data.prompts import PromptRows
from lockstep.data.rows import DataError

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SLOW = "a" * 12_000
"""A text that takes the tokenizer below half a second; its square counts."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    whole = Tokenizer(models.WordLevel({"?": 0, "end": 1}, unk_token="?"))
    whole.pre_tokenizer = pre_tokenizers.Split(Regex("a*b|."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="end")


def write(folder: Path, *rows: dict[str, str]) -> JsonlIndex:
    return JsonlIndex(write_rows(folder / "rows.jsonl", rows))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that need no patience."""
    for name, value in {
        "_TEMPLATE_S": 0.2,
        "_TOKENIZER_S": 0.1,
        "_CHARACTERS_A_SECOND": 1e9,
    }.items():
        monkeypatch.setattr(limits, name, value)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (ENDLESS, r"it takes more than 0\.2 s"),
        ("{{ 'a' * 10**10 }}", "it needs more than 1 GiB of memory"),
    ],
)
@pytest.mark.usefixtures("short")
def test_chat_template_that_exceeds_time_or_memory_limit_is_rejected(
    template: str, why: str
) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ChatTemplateError, match=why):
        render_prompt([{"role": "user", "content": "1"}], tokenizer)


@pytest.mark.usefixtures("short")
def test_tokenizer_that_exceeds_time_limit_is_stopped_and_row_named(tmp_path: Path) -> None:
    """There are more slow rows than a small machine has cores, so no thread of the tokenizer is
    free to find one.
    """
    rows = write(tmp_path, {"question": "b"}, *({"question": SLOW} for _ in range(3)))
    data = DataSection(train="rows.jsonl", max_prompt_tokens=99_999, prompt="{question}", answer="")
    with pytest.raises(
        DataError,
        match=r"line 2: the tokenizer of .* fails on the text starting with 'aaa.*takes more",
    ):
        PromptRows(rows, build_tokenizer(), data)


@pytest.mark.parametrize("field", ["question", "answer"])
def test_row_with_text_above_character_limit_is_rejected_by_line(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "_MOST_CHARACTERS", 1000)
    usual = {"question": "b", "answer": "b"}
    rows = write(tmp_path, usual, usual | {field: "b" * 1001})
    options = {
        "train": "rows.jsonl",
        "max_prompt_tokens": 99_999,
        "prompt": "{question}",
        "completion": "{answer}",
    }
    with pytest.raises(
        DataError,
        match=r"2: its text has 1,001 characters, more than the limit of 1,000",
    ):
        DemonstrationRows(rows, build_tokenizer(), DataSection.model_validate(options), 99_999, [])
