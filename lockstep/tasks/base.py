"""Shared parts of toy tasks: their base class, file writing, and random numbers.

Imports no torch.

A task is one file, in this folder or anywhere (docs/guides/data.md). Every recipe that names it
imports it for its options, so it must not import torch at the top either.
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
    """Writes JSONL to a temporary file and renames it, so that readers never see half a file.

    A file that already has these rows is left unchanged, so as not to disturb its readers.
    """
    write_changed(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def sample_uniforms(rows: Iterable[int], count: int, *key: int | str) -> list[list[float]]:
    """`count` uniform numbers in (0, 1) per row, determined by the key and the row number."""
    import torch

    from lockstep.core import keyed

    keys = torch.tensor([keyed.hash_key(*key, row) for row in rows])
    return keyed.draw_uniforms(keys, torch.arange(count)).tolist()


def permute(length: int, *key: int | str) -> list[int]:
    """A random order of `range(length)` that depends only on the key."""
    from lockstep.core import keyed

    return keyed.draw_permutation(length, *key).tolist()
