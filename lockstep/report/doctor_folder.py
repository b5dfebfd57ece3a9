"""What `lockstep doctor` leaves behind: a report that is small, and the columns that it was computed from.

    report.json           what was measured, decided and found; its schema is numbered
    columns.safetensors   of each measurement its tokens, `<columns>/tokens` and so on

JSON has no word for what is no number: NaN is null there, the infinities are "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

REPORT, COLUMNS = "report.json", "columns.safetensors"
SCHEMA = 1

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Columns:
    """A measurement token by token: N tokens of B sequences, of which M were drawn and scored.

    Attributes:
        tokens: Ids, prompts included [N].
        lengths: Tokens of each sequence [B].
        prompts: Tokens of each sequence's prompt [B].
        train: Log-probabilities of the training side, nats [M].
        infer: Of the inference side [M].
        floor: |Δ| of two legitimate ways to compute the same tokens, nats [M]; None where there is no second way.
    """

    tokens: Numbers
    lengths: Numbers
    prompts: Numbers
    train: Numbers
    infer: Numbers
    floor: Numbers | None

    @cached_property
    def size(self) -> Numbers:
        """|Δ| of each token, nats; infinite where a side has no finite log-probability [M]."""
        train, infer = self.train.astype(np.float64), self.infer.astype(np.float64)
        comparable = np.isfinite(train) & np.isfinite(infer)
        return np.abs(np.subtract(train, infer, out=np.full(train.shape, np.inf), where=comparable))

    @cached_property
    def row(self) -> Numbers:
        """Of each scored token its sequence [M]."""
        return np.repeat(np.arange(self.lengths.size), self.lengths - self.prompts)

    @cached_property
    def index(self) -> Numbers:
        """Of each scored token its place in the response, from 1 [M]."""
        drawn = self.lengths - self.prompts
        return np.arange(self.row.size) - np.repeat(np.cumsum(drawn) - drawn, drawn) + 1

    @cached_property
    def position(self) -> Numbers:
        """Of each scored token its place in the sequence, from 0 [M]."""
        return self.index - 1 + self.prompts[self.row]

    def sequence(self, row: int) -> Numbers:
        """The ids of one sequence, prompt included."""
        end = int(self.lengths[: row + 1].sum())
        return self.tokens[end - int(self.lengths[row]) : end]


class DoctorFolder:
    """What lies in a folder.

    Attributes:
        report: As it was written.

    Raises:
        ValueError: If there is no report, or its schema is another.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.report = _read(folder / REPORT)

    @staticmethod
    def there(folder: Path) -> bool:
        """Whether a doctor wrote here."""
        return (folder / REPORT).is_file()

    def columns(self, drawn: Iterable[Mapping[str, Any]]) -> Iterator[Columns]:
        """The columns of some measurements, one after the other, so that never all of them are in memory."""
        path = self._folder / COLUMNS
        try:
            with safe_open(path, "numpy") as tensors:
                for names in drawn:
                    yield Columns(**{field: tensors.get_tensor(name) for field, name in names.items()})
        except (OSError, SafetensorError, KeyError) as error:
            raise ValueError(f"{path} cannot be read ({error}); write it anew by `lockstep doctor table`") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent} holds no {path.name} of a doctor; `lockstep doctor table` writes one")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); write it anew by `lockstep doctor table`") from None
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema!r}, and this Lockstep reads {SCHEMA}; write it anew")
    return report
