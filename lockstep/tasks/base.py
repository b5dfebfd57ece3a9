"""The common part of toy tasks: their class, the files that they write, and random numbers.

Imports no torch.

A task is one file, beside this one or anywhere (docs/guides/data.md). Its options are read from it
wherever a recipe names it, so it imports no torch at its top either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lockstep.config import Task, TaskFiles
from lockstep.system.whole_files import write_changed

__all__ = [
    "Task",
    "TaskFiles",
    "permute",
    "sample_uniforms",
    "write_rows",
]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSONL aside and renames it into place, so that no one ever reads half a file.

    A file that already holds these rows is left alone, so that its readers are not disturbed.
    """
    write_changed(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def sample_uniforms(rows: Iterable[int], count: int, *key: int | str) -> list[list[float]]:
    """`count` uniform numbers in (0, 1) for each row, which depend on the key and the row's number
    alone.
    """
    import torch

    from lockstep.core import keyed

    keys = torch.tensor([keyed.key(*key, row) for row in rows])
    return keyed.uniforms(keys, torch.arange(count)).tolist()


def permute(length: int, *key: int | str) -> list[int]:
    """A random order of `range(length)` that depends on the key alone."""
    from lockstep.core import keyed

    return keyed.permutation(length, *key).tolist()
