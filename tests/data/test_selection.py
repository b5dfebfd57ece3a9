"""Which rows a run uses: the others are counted by reason and named, and the pass over all rows is
made once.
"""

import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from lockstep.config import DataSection
from lockstep.data import prompts as prompts_module
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.prompts import PromptRows
from lockstep.data.templates import find_field_fault
from lockstep.models.tokenizer import words_tokenizer

LINES = [
    '{"question": "one two", "answer": "1"}',
    "no JSON",
    '{"question": "one"}',
    '{"question": "one", "answer": null}',
    '{"question": "one two three four", "answer": "1"}',
    '{"question": "one", "answer": 7}',
    '{"question": "one", "question": "two", "answer": "1"}',
]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return words_tokenizer(["one two three four 1 7"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(LINES))
    return path


def section(**options: Any) -> DataSection:
    chosen = {
        "train": "rows.jsonl",
        "max_prompt_tokens": 3,
        "bad_rows": "skip",
        "overlong_prompts": "skip",
        **options,
    }
    return DataSection(**chosen)


def used(path: Path, tokenizer: Any, **options: Any) -> PromptRows:
    data = section(**options)
    return PromptRows(open_rows(FileGroup((path,)), data.bad_rows), tokenizer, data)


def test_rows_are_skipped_counted_by_reason_and_named(
    path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in ("first", "from the cache"):
        prompts = used(path, tokenizer)
        assert [prompt.id for prompt in prompts.read_first()] == ["rows.jsonl:1", "rows.jsonl:6"]
        assert prompts.selection.skipped_summary == "4 bad rows, 1 over-long skipped"
        assert prompts.selection.skipped_count == 5
        said = capsys.readouterr().err
        for sentence in (
            "line 2: is invalid JSON",
            "line 3: has no field 'answer'",
            "line 4: has null in the field 'answer'",
            'line 7: has the key "question" twice',
            "line 5: the prompt has 4 tokens, more than data.max_prompt_tokens=3",
        ):
            assert f"{path}, {sentence}" in said


KINDS = {"text": "", "number": 0.5, "boolean": False, "list": [], "object": {}}


@pytest.mark.parametrize("kind", [*KINDS, "any"])
@pytest.mark.parametrize("given", [*KINDS, "null", "date"])
def test_field_type_check_accepts_only_the_required_type(kind: Any, given: str) -> None:
    value = {**KINDS, "null": None, "date": datetime.date(2026, 1, 1)}[given]
    fits = given == kind or (kind == "any" and given in KINDS)
    assert (find_field_fault({"field": value}, {"field": kind}) is None) == fits


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("rows were tokenised again")


def test_second_opening_reuses_cached_row_selection_without_tokenizing(
    path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used(path, tokenizer)
    DemonstrationRows(JsonlIndex(path, "skip"), tokenizer, section(), 9)
    monkeypatch.setattr("lockstep.data.prompts.token_ids", refused)
    monkeypatch.setattr("lockstep.data.answers.token_ids", refused)
    moved = tmp_path / "moved.jsonl"
    path.rename(moved)
    assert len(used(moved, tokenizer)) == 2
    assert len(DemonstrationRows(JsonlIndex(moved, "skip"), tokenizer, section(), 9)) == 2


@pytest.mark.parametrize(
    "options",
    [{"max_prompt_tokens": 2}, {"prompt": "{question}."}, {"answer": "{answer}."},
     {"chat": True}, {"chat": True, "system_prompt": "one"}],
)  # fmt: skip
def test_changed_prompt_options_invalidate_cached_row_selection(
    path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, options: dict
) -> None:
    tokenizer.chat_template = "{{ messages[0].content }}"
    used(path, tokenizer)
    monkeypatch.setattr(prompts_module, "token_ids", refused)
    with pytest.raises(AssertionError, match="tokenised again"):
        used(path, tokenizer, **options)
