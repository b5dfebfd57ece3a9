"""The base of every view of a run's logs: the run's facts, and a replay of the logs into a tracker."""

from __future__ import annotations

import heapq
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from lockstep.config.loading import Loaded
from lockstep.report.log import METRICS, SAMPLES, TIMINGS, lines, read_environment, read_numbers
from lockstep.run.trackers.base import Tracker


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
    def of(cls, loaded: Loaded, folder: Path) -> Facts:
        """The facts of a run whose folder exists."""
        return cls(folder, loaded.dump(), read_environment(folder))

    @property
    def name(self) -> str:
        """The folder's own name, which has the recipe's name and digest in it unless the recipe says otherwise."""
        return self.folder.resolve().name


class View(Tracker, ABC):
    """A tracker that shows a run's logs elsewhere.

    `rewind` opens it. The logs have been rewound by then.
    """

    @property
    @abstractmethod
    def where(self) -> str:
        """The URL or path of the run, or the command that shows it; for an open view."""


def replay(folder: Path, tracker: Tracker) -> None:
    """Replays a run's logs into a tracker, step by step, as the run first logged them."""
    logs = [_lines(folder, kind) for kind in (METRICS, SAMPLES, TIMINGS)]
    for (step, kind, _), group in groupby(heapq.merge(*logs, key=itemgetter(0)), key=_together):
        rows = [row for _, _, row in group]
        if kind == SAMPLES and rows:
            tracker.samples(step, rows)
        for row in rows if kind != SAMPLES else []:
            tell = tracker.metrics if kind == METRICS else tracker.timings
            tell(step, row)


def sample_kind(rows: Sequence[Mapping[str, Any]]) -> str:
    """The kind of rows of the sample log: those of held-out prompts are shown apart from those of training."""
    return "validation_samples" if rows and rows[0].get("held_out") else "samples"


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells of rows; values other than text and numbers become JSON, and missing ones None."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[_cell(row.get(column)) for column in columns] for row in rows]


def _together(line: tuple[int, str, dict[str, Any]]) -> tuple[int, str, bool]:
    """Groups log lines that a run logged at once: step, log, and True for held-out rows."""
    step, kind, row = line
    return step, kind, bool(row.get("held_out"))


def _lines(folder: Path, kind: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for row in (row for row, _ in lines(folder / kind)) if kind == SAMPLES else read_numbers(folder / kind):
        yield int(row.pop("step")), kind, row


def _cell(value: Any) -> Any:
    match value:
        case dict() | list() | tuple():
            return json.dumps(value, ensure_ascii=False)
        case float() if math.isnan(value):
            return None  # as the log writes it
        case _:
            return value
