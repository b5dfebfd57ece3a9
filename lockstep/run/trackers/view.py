"""A view of a run's logs: what it is given, and the facts of the run that it shows beside them."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.config.loading import Loaded
from lockstep.report.log import read_environment

Outcome = Literal["finished", "failed", "interrupted"]
"""The way a run's process ended; one that was killed reports none."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Facts:
    """Facts of a run that are known before its first step.

    Attributes:
        folder: Folder of the run.
        recipe: Every option with its value, as JSON types.
        environment: Versions and machine.
    """

    folder: Path
    recipe: dict[str, Any]
    environment: dict[str, Any]

    @classmethod
    def of(cls, loaded: Loaded) -> Facts:
        """The facts of a run, whose folder need not be there yet."""
        return cls(loaded.run_folder, loaded.dump(), read_environment(loaded.run_folder))

    @property
    def name(self) -> str:
        """The folder's own name, which has the recipe's name and digest in it unless the recipe
        says otherwise.
        """
        return self.folder.resolve().name


class View(ABC):
    """Shows a run's logs elsewhere."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The URL or path of the run, or the command that shows it; for an open view."""

    @abstractmethod
    def open(self, step: int) -> int:
        """Opens the view for a run that continues after a step.

        Returns:
            The newest step that it shows already; later ones are sent, earlier ones are not. −1: it
            shows none.
        """

    @abstractmethod
    def send(self, step: int, values: Mapping[str, float], samples: Mapping[str, Rows]) -> None:
        """Shows what was logged of a step since the last call.

        Args:
            step: The step.
            values: Metrics and timings.
            samples: Responses; those of held-out prompts apart from those of training, as
                `validation_samples`.
        """

    @abstractmethod
    def close(self, outcome: Outcome) -> None:
        """Ends the view with the run's process."""


def table(rows: Rows) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells of rows; values other than text and numbers become JSON, and missing ones
    None.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[_cell(row.get(column)) for column in columns] for row in rows]


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
