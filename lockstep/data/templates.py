"""Templates: text with `{field}` placeholders that a row fills, and the fields they need."""

from __future__ import annotations

import functools
import json
import re
import string
from collections.abc import Mapping
from typing import Any, Literal

from lockstep.core.errors import InputError, shorten_text
from lockstep.data.jsonl import AsWritten
from lockstep.data.rows import DataError, DataRow, find_not_finite, read_number

FieldType = Literal["text", "number", "boolean", "list", "object", "any"]
_KINDS: Mapping[type, FieldType] = {
    str: "text",
    bool: "boolean",
    int: "number",
    float: "number",
    AsWritten: "number",
    list: "list",
    dict: "object",
}
_RIGHT = {"any": "text, a number, a list or an object"}


def fill_template(template: str, row: DataRow, where: str) -> str:
    """Fills `{field}` in a template from a row; `{field.inner}` reads an object in it.

    `{{` and `}}` stand for braces. Strings are inserted unchanged, numbers as they were written,
    booleans, lists and objects as JSON.

    Args:
        template: The text around the fields.
        row: The row with the fields.
        where: Name of the row in messages.

    Raises:
        DataError: The field is missing, null, or not a JSON value.
        ValueError: The template is malformed.
    """
    return "".join(
        literal + (_render_field(row, name, where) if name else "")
        for literal, name in _parse_template(template)
    )


def list_fields(template: str) -> list[str]:
    """The fields that a template needs.

    Raises:
        ValueError: The template is malformed.
    """
    return [name for _, name in _parse_template(template) if name]


def has_fields(row: DataRow, template: str) -> bool:
    """True if a row has the fields of a template."""
    return find_field_fault(row, dict.fromkeys(list_fields(template), "any")) is None


def find_doubled_braces(template: str, row: DataRow) -> str | None:
    """Returns a field of the row that a template writes as `{{ field }}`, which is not filled
    in.
    """
    named = re.findall(r"(?<!\{)\{\{\s*(\w+)\s*\}\}(?!\})", template)
    return next((name for name in named if name in row), None)


def find_askers(templates: Mapping[str, str]) -> dict[str, str]:
    """Maps each field that templates need to the options that hold the templates."""
    askers: dict[str, str] = {}
    for option, template in templates.items():
        askers |= dict.fromkeys(list_fields(template), f"{option}={template!r}")
    return askers


def find_field_fault(
    row: DataRow, wanted: Mapping[str, FieldType], asking: Mapping[str, str] | None = None
) -> str | None:
    """Returns the error in a row's fields; None if valid.

    Args:
        row: The row.
        wanted: Required fields and their types.
        asking: The options that need the fields, if known.
    """
    for name, kind in wanted.items():
        value = read_field(row, name)
        if value is None:
            state = "null in the field" if name in row else "no field"
            there = shorten_text(", ".join(row)) or "none"
            asker = (asking or {}).get(name, "a template or the reward")
            option, is_set, _ = asker.partition("=")
            cure = f"; set {option}=FIELD to one of them" if is_set and row else ""
            return f"has {state} {name!r}, which {asker} needs; its fields are {there}{cure}"
        fits = type(value) in _KINDS if kind == "any" else _json_kind(value) == kind
        if not fits:
            return (
                f"has {_json_kind(value)} in the field {name!r}, which should be "
                f"{_RIGHT.get(kind, kind)}"
            )
        if kind == "number" and read_number(value) is None:
            endless = value
        else:
            endless = find_not_finite(value)
        if endless is not None:
            return (
                f"has {shorten_text(str(endless))} in the field {name!r}, which is not a "
                "finite number"
            )
    return None


def read_field(row: DataRow, name: str) -> Any:
    """Returns the value of a field; dots in the name lead into objects, as in `outer.inner`.

    None if it is missing.
    """
    if name in row or "." not in name:
        return row.get(name)
    outer, _, inner = name.partition(".")
    value = row.get(outer)
    if isinstance(value, dict):
        return read_field(value, inner)
    return None


def find_messages(row: DataRow, template: str) -> str | None:
    """The first field of a template that holds messages in a row; None if there is none.

    Messages are a list of {role, content}.
    """
    return next((name for name in list_fields(template) if is_talk(read_field(row, name))), None)


def is_talk(value: object) -> bool:
    """True for a list of {role, content}, which fits a chat template but not text."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(it, dict) and "role" in it for it in value)
    )


def _json_kind(value: object) -> str:
    """The type of a JSON value; Python's type name for anything else."""
    return _KINDS.get(type(value)) or type(value).__name__


@functools.lru_cache(maxsize=64)
def _parse_template(template: str) -> tuple[tuple[str, str | None], ...]:
    """A template as pairs of literal text and the field that follows it."""
    parts = []
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(
            f"template {template!r} is malformed ({error}); write braces as {{{{ and }}}}"
        ) from error
    for literal, name, spec, conversion in parsed:
        if name == "" or spec or conversion:
            raise InputError(
                f"template {template!r}: only plain fields like {{question}} are supported; write "
                f"braces as {{{{ and }}}}"
            )
        parts.append((literal, name))
    return tuple(parts)


def _render_field(row: DataRow, name: str, where: str) -> str:
    value = read_field(row, name)
    if type(value) not in _KINDS or find_not_finite(value) is not None:
        raise DataError(f"{where}: {find_field_fault(row, {name: 'any'})}")
    try:
        if isinstance(value, str):
            return value
        return as_written(value)
    except TypeError as error:  # tables can hold dates and bytes inside lists
        raise DataError(
            f"{where}: the field {name!r} cannot be inserted into a template ({error})"
        ) from error


def as_written(value: Any) -> str:
    """Encodes JSON with numbers as written; Python's encoder would write 3.1 for 3.10.

    Raises:
        TypeError: The value has no JSON form.
    """
    match value:
        case AsWritten():
            return value.text
        case list():
            return f"[{', '.join(map(as_written, value))}]"
        case dict():
            items = (f"{as_written(key)}: {as_written(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
        case _:
            return json.dumps(value, ensure_ascii=False)
