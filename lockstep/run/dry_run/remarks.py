"""Remarks on a valid recipe that is probably not what the user wants."""

from __future__ import annotations

from lockstep.algorithms.rows import DataFiles
from lockstep.config import Common
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.templates import list_fields
from lockstep.models.device import resolve_device
from lockstep.system.process_defaults import count_cores
from lockstep.system.yaml12 import flatten_tree

_HIGHEST_LR = 0.02
"""Highest learning rate without a remark."""


def list_remarks(recipe: Common, files: DataFiles) -> list[str]:
    """Remarks for the log of a run and for a dry run, one sentence each."""
    remarks: list[str] = []
    if (
        files.validation is not None
        and not isinstance(recipe.data.validation, float)  # a share of the same files
        and (shared := _read_digests(files.validation) & _read_digests(files.train))
    ):
        if shared == _read_digests(files.validation):
            overlap = "the rows"
        else:
            overlap = "some of the rows"
        remarks.append(
            f"data.validation holds {overlap} of data.train, so it measures memorization; validate "
            "on held-out rows"
        )
    ranks = recipe.learner.parallel.ranks
    cores = count_cores()
    if resolve_device(recipe.learner.device).type == "cpu" and ranks > cores:
        remarks.append(
            f"{recipe.learner.layout_key} asks for {ranks} ranks on {cores} cores, where they wait "
            "for each other; fewer ranks are faster"
        )
    for keys, value in flatten_tree(recipe.model_dump()):
        if keys[-1] == "lr" and isinstance(value, float) and value > _HIGHEST_LR:
            remarks.append(
                f"{'.'.join(keys)}={value:g} is far above usual learning rates, 1e-7 to 1e-2, so "
                "it can destroy the model"
            )
    data = recipe.data
    if data.prompt_templates and not list_fields(data.prompt):
        remarks.append(
            f"data.prompt={data.prompt!r} uses no {{field}} of the rows, so all prompts are the "
            "same; write fields in braces"
        )
    return remarks


def _read_digests(files: FileGroup) -> set[str]:
    """A digest of each file."""
    return {open_rows(FileGroup((path,)), "skip").digest for path in files.paths}
