"""Remarks on a recipe that can run but is probably not what the user meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.algorithms.rows import DataFiles
from lockstep.config import Common, Optimizer, Section
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.templates import fields

_LARGEST_LR = 0.1
"""AdamW and RMSprop move each weight by about lr a step; those of trained models are about 0.02, and no shipped recipe
says more than 0.01."""


def remarks(recipe: Common, files: DataFiles) -> list[str]:
    """Remarks for the log of a run, and for a dry run, one sentence each."""
    found = [
        f"{name}.lr={optimizer.lr:g} moves every weight by about {optimizer.lr:g} at each step, and weights of trained "
        "models are about 0.02; 1e-6 to 1e-3 is usual"
        for name, optimizer in _optimizers(recipe)
        if optimizer.lr >= _LARGEST_LR
    ]
    if files.validation is not None and (shared := _digests(files.validation) & _digests(files.train)):
        what = "the rows" if shared == _digests(files.validation) else "some of the rows"
        found.append(
            f"data.validation holds {what} of data.train, so what it measures is memory; hold rows out that are not "
            "trained on"
        )
    data = recipe.data
    if data.prompt_templates and not fields(data.prompt):
        found.append(
            f"data.prompt={data.prompt!r} names no {{field}} of the rows, so all prompts are the same; a field stands "
            "in braces"
        )
    return found


def _optimizers(section: Section) -> Iterator[tuple[str, Optimizer]]:
    values: dict[str, Any] = dict(section)
    return ((name, value) for name, value in values.items() if isinstance(value, Optimizer))


def _digests(files: FileGroup) -> set[str]:
    """A digest of each file."""
    return {open_rows(FileGroup((path,)), "skip").digest for path in files.paths}
