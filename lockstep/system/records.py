"""Reads JSON files that the program wrote itself, and checks that each is a regular file of the
expected shape.

A folder may come from another version, from another machine, or from a disk that failed. Imports no
torch.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lockstep.core.errors import InputError

T = TypeVar("T")


def is_file(path: Path) -> bool:
    """True for a file, False where nothing is; raises as `refuse_other`."""
    refuse_other(path)
    return path.is_file()


def refuse_other(path: Path) -> None:
    """Refuses an existing path that is no regular file.

    Raises:
        InputError: It is a pipe or a device, whose reader would wait for ever, a folder, or a link
            that leads nowhere.
    """
    if os.path.lexists(path) and not path.is_file():
        if path.is_dir():
            kind = "a folder"
        else:
            kind = "no file, but a pipe, a device or a link that leads nowhere"
        raise InputError(
            f"{path} is {kind}, where a file of text belongs; remove it, or put the file back"
        )


def read_record(path: Path, shape: type[T], cure: str) -> T:
    """Reads a file of JSON.

    Args:
        path: The file, which is there.
        shape: What it holds: a dataclass, whose other fields are passed over, or a mapping.
        cure: What to do where it holds something else.

    Raises:
        InputError: If it is no file, no JSON, or has another shape.
    """
    refuse_other(path)
    return check_shape(path.read_bytes(), shape, f"{path} is not as Lockstep writes it", cure)


def check_shape(text: bytes, shape: type[T], refusal: str, cure: str) -> T:
    """Parses JSON into a shape, as `read_record` does; `refusal` is the beginning of the error's
    message.
    """
    try:
        return _adapter(shape).validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"{refusal} ({first_fault(error)}); {cure}") from error


def first_fault(error: ValidationError) -> str:
    """The first thing that is wrong in a value, and its place there."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    if place:
        return f"{place}: {first['msg']}"
    return first["msg"]


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
