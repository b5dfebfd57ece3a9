"""Tasks generate rows instead of reading them: their options, and the class of each name.

Imports no torch.

Each file in `lockstep/tasks/` is a task, and its class has the file's name: `word_sort.py` has
`WordSort`. A recipe may also set `name: file.py:Class`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidatorFunctionWrapHandler

from lockstep.config.plugins import PluginRegistry
from lockstep.config.section import Section
from lockstep.core.errors import InputError


@dataclass(frozen=True)
class TaskFiles:
    """The JSONL files that a task has generated; None for kinds that it does not generate.

    Attributes:
        train: Rows to train on.
        validation: Held-out rows.
        demonstrations: Rows to imitate, in training order; None means the training rows.
        judgments: Held-out judgments that are known to be right.
        comparisons: Comparisons of two held-out judgments, also known to be right.
    """

    train: Path
    validation: Path
    demonstrations: Path | None = None
    judgments: Path | None = None
    comparisons: Path | None = None

    @classmethod
    def name_in(
        cls, folder: Path, *, demonstrations: bool = False, known: bool = False
    ) -> TaskFiles:
        """Names the files in a folder: rows, and demonstrations and known judgments on request."""
        return cls(
            folder / "train.jsonl",
            folder / "validation.jsonl",
            folder / "demonstrations.jsonl" if demonstrations else None,
            folder / "judgments.jsonl" if known else None,
            folder / "comparisons.jsonl" if known else None,
        )


class Task(Section, ABC):
    """The options of a task, which generates its rows instead of reading them."""

    shared: ClassVar[tuple[str, ...]] = ()
    """Options that select the held-out rows; a warm start takes them from the next recipe."""
    name: str = Field(
        description="the task, which defines the other options: a shipped task, or file.py:Class"
    )

    @property
    def best_reward(self) -> float | None:
        """Mean reward of the best policy by the reward function or environment in the task's file.

        None if unknown.
        """
        return None

    def find_best_reward(self, code: str | None) -> float | None:
        """The `best_reward` if `code` is in the task's own file, else None.

        `code` is the reference of a reward function or environment.
        """
        place = self.name.rpartition(":")[0] or type(self).__module__
        if code is not None and code.rpartition(":")[0] == place:
            return self.best_reward
        return None

    @abstractmethod
    def write(self, folder: Path) -> TaskFiles:
        """Generates the rows and writes them; the same options always give the same bytes.

        Args:
            folder: Target folder, created if missing.
        """

    @classmethod
    def narrow_class(cls, value: object) -> type[Section]:
        try:
            return find_task(value)
        except InputError:  # reported when the recipe is validated
            return cls


def find_task(value: object) -> type[Task]:
    """The class of the task that the value of a section names.

    Raises:
        InputError: The task does not exist, or the section has no name.
    """
    name = value.get("name") if isinstance(value, Mapping) else None
    found = _TASKS.find_class(name) if isinstance(name, str) else None
    if found is not None:
        return found
    raise InputError(
        f"name is {json.dumps(name)}; choose one of {', '.join(_TASKS.list_names())}, or name "
        "your own "
        "as file.py:Class"
    )


def validate_as_named(value: Any, validate: ValidatorFunctionWrapHandler) -> Task:
    """Validates a section by the class that it names, strictly and as JSON."""
    if isinstance(value, dict):
        return find_task(value).model_validate_json(json.dumps(value), strict=True)
    return validate(value)


_FILES = {file.stem for file in (Path(__file__).parent.parent / "tasks").glob("*.py")}
_TASKS = PluginRegistry(
    "name",
    Task,
    "lockstep.tasks.base.Task",
    {
        name: f"lockstep.tasks.{name}:{name.title().replace('_', '')}"
        for name in sorted(_FILES - {"__init__", "base"})
    },
)
