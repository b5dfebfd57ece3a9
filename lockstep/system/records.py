"""Reads JSON files that Lockstep wrote, and checks that they are regular files of a known shape.

A folder may come from a different version or machine, or from a disk that failed. Imports no torch.
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
    """True for a file, False if nothing is there; raises like `refuse_other`."""
    refuse_other(path)
    return path.is_file()


def refuse_other(path: Path) -> None:
    """Raises an error for an existing path that is not a regular file.

    Raises:
        InputError: It is a pipe or a device, whose reader would wait forever, a folder, or a broken
            link.
    """
    if os.path.lexists(path) and not path.is_file():
        if path.is_dir():
            kind = "a folder"
        else:
            kind = "a pipe, a device or a broken link"
        raise InputError(f"{path} is {kind}, not a text file; remove it, or restore the file")


def read_record(path: Path, shape: type[T], cure: str) -> T:
    """Reads a JSON file.

    Args:
        path: The existing file.
        shape: Expected content: a dataclass (unknown fields are ignored) or a mapping.
        cure: What to do if the content does not match.

    Raises:
        InputError: It is not a file, not JSON, or has a different shape.
    """
    refuse_other(path)
    return check_shape(path.read_bytes(), shape, f"{path} is not a valid Lockstep file", cure)


def check_shape(text: bytes, shape: type[T], refusal: str, cure: str) -> T:
    """Parses JSON into a shape, like `read_record`; `refusal` begins the error's message."""
    try:
        return _build_adapter(shape).validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(f"{refusal} ({describe_first_error(error)}); {cure}") from error


def describe_first_error(error: ValidationError) -> str:
    """The first error in a value, and its path in it."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(map(str, first["loc"]))
    if path:
        return f"{path}: {first['msg']}"
    return first["msg"]


@cache
def _build_adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
