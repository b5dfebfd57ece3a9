"""A view of a run's logs, and the facts about the run that it shows."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lockstep.config.loading import LoadedRecipe
from lockstep.report.log import read_environment

RunOutcome = Literal["finished", "failed", "interrupted"]
"""Ways that a run's process can end; a killed process reports nothing."""

SampleRows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that are known before its first step.

    Attributes:
        folder: Folder of the run.
        recipe: All options with their values, as JSON types.
        environment: Versions and machine.
    """

    folder: Path
    recipe: dict[str, Any]
    environment: dict[str, Any]

    @classmethod
    def from_recipe(cls, loaded: LoadedRecipe) -> RunFacts:
        """The facts of a run; its folder need not exist yet."""
        return cls(loaded.run_folder, loaded.dump_options(), read_environment(loaded.run_folder))

    @property
    def name(self) -> str:
        """The folder's name, which by default holds the recipe's name and digest."""
        return self.folder.resolve().name


class TrackerView(ABC):
    """A tracker that shows a run's logs."""

    @property
    @abstractmethod
    def run_location(self) -> str:
        """The URL or path of the run, or the command that shows it; only for an open view."""

    @abstractmethod
    def open_view(self, step: int) -> int:
        """Opens the view for a run that continues after a step.

        Returns:
            The newest step that it already shows; only later ones are sent. −1 if it shows none.
        """

    @abstractmethod
    def send_step(
        self, step: int, values: Mapping[str, float], samples: Mapping[str, SampleRows]
    ) -> None:
        """Shows the log entries of a step since the last call.

        Args:
            step: The step.
            values: Metrics and timings.
            samples: Responses; for held-out prompts, under `validation_samples`.
        """

    @abstractmethod
    def close_view(self, outcome: RunOutcome) -> None:
        """Closes the view at the end of the run's process."""


def build_table(rows: SampleRows) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells of rows; values except text and numbers become JSON, missing ones None."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [list(map(_encode_cell, map(row.get, columns))) for row in rows]


def _encode_cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
