"""Several files as one, and files of every format behind one protocol."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet as tables
from row_files import write_rows

from lockstep.config import DataSection
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.jsonl import DataError
from lockstep.data.prompts import PromptRows
from lockstep.models.tokenizer import words_tokenizer

ROWS = [
    {"question": "007", "answer": 3.5, "tags": ["a", None]},
    {"question": "null", "answer": None, "tags": []},
]
LINES = (
    b'{"question": "007", "answer": 3.5, "tags": ["a", null]}\n{"question": "null", "answer": '
    b'null, "tags": []}\n'
)


def jsonl(folder: Path) -> Path:
    (folder / "rows.jsonl").write_bytes(LINES)
    return folder / "rows.jsonl"


def parquet(folder: Path) -> Path:
    return write_table(folder / "rows.parquet", ROWS)


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    tables.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("make", [jsonl, parquet])
def test_jsonl_and_parquet_files_implement_the_same_row_protocol(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path)
    rows = open_rows(FileGroup((path,)))
    assert len(rows) == 2
    assert rows.read_rows([1, 0, 1]) == [ROWS[1], ROWS[0], ROWS[1]]
    assert [rows.row_id(i) for i in range(2)] == [f"{path.name}:1", f"{path.name}:2"]
    assert rows.name_row(1) in (f"{path}, line 2", f"{path}, row 2")
    assert (rows.skipped.count, rows.skipped.first) == (0, ())
    assert open_rows(FileGroup((path,))).digest == rows.digest
    int(rows.digest, 16)


def test_reading_parquet_file_modified_after_opening_is_rejected(tmp_path: Path) -> None:
    path = parquet(tmp_path)
    rows = open_rows(FileGroup((path,)))
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match="changed while in use"):
        rows.read_rows([0])
    assert open_rows(FileGroup((path,))).digest == rows.digest  # only its time has changed


def many(folder: Path, name: str, answers: range) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f'{{"question": "q", "answer": "{n}"}}\n' for n in answers))
    return path


def test_several_files_are_indexed_as_one_in_given_order(tmp_path: Path) -> None:
    paths = (
        many(tmp_path, "a.jsonl", range(3)),
        parquet(tmp_path),
        many(tmp_path, "b.jsonl", range(3, 5)),
    )
    rows = open_rows(FileGroup(paths))
    assert [row["answer"] for row in rows.read_rows([6, 0, 3, 2, 6])] == ["4", "0", 3.5, "2", "4"]
    assert [rows.row_id(i) for i in (2, 3, 5)] == ["a.jsonl:3", "rows.parquet:1", "b.jsonl:1"]
    assert rows.name_row(6) == f"{paths[2]}, line 2"
    assert len(rows) == 7


CALLS = [
    {"question": "q", "note": None, "messages": [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
    ]},
    {"question": "q", "note": "x", "messages": [
        {"role": "user", "content": "Join.", "name": "Ada"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "cat", "arguments": {"b": "x", "c": ["y", None]}}}]},
        {"role": "tool", "content": "", "tool_call_id": "1"},
    ]},
]  # fmt: skip


def padded(value: Any, keys: tuple[str, ...]) -> Any:
    """A value as pandas exports it: objects in it have all keys."""
    if isinstance(value, list):
        return [padded(item, keys) for item in value]
    if isinstance(value, dict):
        return {**dict.fromkeys(keys), **{key: padded(inner, keys) for key, inner in value.items()}}
    return value


@pytest.mark.parametrize("form", ["parquet", "jsonl", "json"])
def test_null_keys_inside_objects_are_dropped_in_every_format(form: str, tmp_path: Path) -> None:
    path, lines = tmp_path / f"rows.{form}", [padded(value, ("name", "b")) for value in CALLS]
    match form:
        case "parquet":
            write_table(path, CALLS)
        case "json":
            path.write_text(json.dumps(lines))
        case _:
            write_rows(path, lines)
    found = open_rows(FileGroup((path,))).read_rows([0, 1])
    assert [{key: row[key] for key in CALLS[0]} for row in found] == CALLS


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), [1.0, float("nan")], {"a": {"b": float("nan")}}]
)
def test_non_finite_number_in_parquet_row_makes_it_a_bad_row(value: Any, tmp_path: Path) -> None:
    good = {float: 1.0, list: [1.0], dict: {"a": {"b": 1.0}}}[type(value)]
    rows = [{"question": "q", "answer": good}, {"question": "q", "answer": value}]
    table = open_rows(FileGroup((write_table(tmp_path / "rows.parquet", rows),)))
    data = DataSection(
        train="rows.parquet", prompt="{question}", max_prompt_tokens=8, bad_rows="skip"
    )
    prompts = PromptRows(table, words_tokenizer(["q"]), data)
    assert len(prompts) == 1
    assert "which is not a finite number" in prompts.selection.bad.first[0]
