"""Fits a recipe that was converted from another library's config to its rows, by what the first row holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lockstep.data.files import FileGroup, open_rows
from lockstep.data.rows import DataError, Row
from lockstep.data.templates import fields, is_talk, read_field
from lockstep.errors import InputError
from lockstep.foreign.convert import Converted
from lockstep.foreign.words import Json
from lockstep.paths import expand

_ANSWERS = ("answer", "solution", "ground_truth", "reward_model.ground_truth", "label")
"""Fields with a right answer, by the names that rows of these libraries give it."""
_SPLIT = "train"
"""The split of a data set that trainers of these libraries use by default."""


def fit_to_rows(converted: Converted) -> Converted:
    """Returns a recipe that reads its rows as they are: messages by the chat template, the answer from its field.

    Without the files, as with placeholders, the recipe stays as it is.
    """
    named = converted.options.get("data.train")
    first = named[0] if isinstance(named, list) and named else named
    path = _find(str(first))
    if path is None:
        return converted
    if (path / "dataset_dict.json").is_file():
        path = path / _SPLIT
        converted = _change(converted, {"data.train": f"{first}/{_SPLIT}"}, "its split")
    try:
        [row] = open_rows(FileGroup((path,))).rows([0])
    except DataError as error:
        return replace(converted, remarks=(*converted.remarks, f"the rows were not looked at: {error}"))
    for change in (_find_messages(converted, row), _find_answer(converted, row)):
        converted = _change(converted, change, f"by the first row of {path.name}")
    return converted


def _find(named: str) -> Path | None:
    """A file or folder of rows; None where it is not there."""
    try:
        path = Path(expand(named))
        return path if path.exists() else None
    except (InputError, OSError):
        return None


def _change(converted: Converted, change: dict[str, Json], note: str) -> Converted:
    """The recipe with changed options; an option that is changed to None is removed."""
    options = {key: value for key, value in {**converted.options, **change}.items() if value is not None}
    remarks = [f"{key}: {value} ({note})" for key, value in change.items() if value is not None]
    notes = {**converted.notes, **dict.fromkeys(change, note)}
    return replace(converted, options=options, notes=notes, remarks=(*converted.remarks, *remarks))


def _find_messages(converted: Converted, row: Row) -> dict[str, Json]:
    """Options that read the messages of a row, where the recipe takes its prompt or its answer for text."""
    options = converted.options
    asked = options.get("data.messages")
    if isinstance(asked, str):
        is_text = isinstance(read_field(row, asked), str)
        return {"data.messages": None, "data.prompt": f"{{{asked}}}", "data.chat": True} if is_text else {}
    found = next((name for name in _list_questions(options.get("data.prompt"), row) if is_talk(row[name])), None)
    if found is None:
        return {}
    change: dict[str, Json] = {"data.messages": found, "data.prompt": None, "data.chat": None}
    completion = options.get("data.completion")
    has_completion = isinstance(completion, str) and all(
        read_field(row, name) is not None for name in fields(completion)
    )
    return change if has_completion else {**change, "data.completion": None}


def _list_questions(template: Json, row: Row) -> Iterator[str]:
    """Fields that may hold a row's prompt: that of the template, or, where a row lacks it, the usual ones."""
    named = fields(template) if isinstance(template, str) else []
    there = [name for name in named if name in row]
    return (name for name in there or ("messages", "chosen") if name in row)


def _find_answer(converted: Converted, row: Row) -> dict[str, Json]:
    """The field of the right answer, where responses are scored and the recipe's is not there."""
    if not any(key.startswith("reward.") for key in converted.options):
        return {}
    template = converted.options.get("data.answer", "{answer}")
    if not isinstance(template, str) or all(read_field(row, name) is not None for name in fields(template)):
        return {}
    found = next((name for name in _ANSWERS if read_field(row, name) is not None), None)
    return {} if found is None else {"data.answer": f"{{{found}}}"}
