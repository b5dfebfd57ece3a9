"""The results of `lockstep doctor`, for readers alone; `docs/doctor_report.md` says more.

    report.json           what was asked, measured and decided; `location` is there once a place has been looked for
    columns.safetensors   the tokens, and what each backend says about them

`location` is what `lockstep_doctor.findings.tree_of` returns of the pair with the largest gap, but `left_out` of
all; `read`, what was read of the requests; and `reproduction`, the path of a script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from lockstep.errors import InputError
from lockstep.records import read_record

REPORT, COLUMNS = "report.json", "columns.safetensors"
SCHEMA = "lockstep.doctor.table/1"
_CURE = "write it anew by `lockstep doctor table`"

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Columns:
    """Two sides token by token: N tokens of B sequences, of which M were sampled and scored.

    Attributes:
        tokens: Ids, prompts included [N].
        lengths: Tokens of each sequence [B].
        mask: Which tokens were sampled, bool [N].
        train: Log-probabilities of the training side, nats [M].
        infer: Log-probabilities of the inference side [M].
        floor: |Δ| that rounding alone makes, nats [M].
    """

    tokens: Numbers
    lengths: Numbers
    mask: Numbers
    train: Numbers
    infer: Numbers
    floor: Numbers

    @cached_property
    def size(self) -> Numbers:
        """|Δ| of each token, nats; infinite where a side has no finite log-probability [M]."""
        train, infer = self.train.astype(np.float64), self.infer.astype(np.float64)
        comparable = np.isfinite(train) & np.isfinite(infer)
        return np.abs(np.subtract(train, infer, out=np.full(train.shape, np.inf), where=comparable))

    @cached_property
    def row(self) -> Numbers:
        """Sequence of each sampled token [M]."""
        return np.repeat(np.arange(self.lengths.size), self.lengths)[self.mask]

    @cached_property
    def position(self) -> Numbers:
        """Place of each sampled token in its sequence, from 1 [M]."""
        return (np.arange(self.tokens.size) - np.repeat(self._starts, self.lengths))[self.mask] + 1

    @cached_property
    def index(self) -> Numbers:
        """Place of each sampled token among those of its sequence, from 1 [M]."""
        counts = np.bincount(self.row, minlength=self.lengths.size)
        return np.arange(self.row.size) - np.repeat(np.cumsum(counts) - counts, counts) + 1

    def sequence(self, row: int) -> Numbers:
        """The ids of one sequence."""
        return self.tokens[self._starts[row] :][: self.lengths[row]]

    @property
    def _starts(self) -> Numbers:
        return np.cumsum(self.lengths) - self.lengths


class DoctorFolder:
    """The results in a folder.

    Attributes:
        report: The report as it was written.

    Raises:
        ValueError: If there is no report, or its schema is another.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.report = _read(folder / REPORT)

    @staticmethod
    def there(folder: Path) -> bool:
        """True if a doctor wrote here."""
        return (folder / REPORT).is_file() and (folder / COLUMNS).is_file()

    def columns(self, named: Iterable[Mapping[str, Any]]) -> Iterator[Columns]:
        """Columns by the names that the report has for them, one set at a time, since all may not fit into memory."""
        path = self._folder / COLUMNS
        try:
            with safe_open(path, "numpy") as file:
                for names in named:
                    single = {field: file.get_tensor(names[field]) for field in _SINGLE}
                    yield Columns(**single, floor=np.hypot(*(file.get_tensor(name) for name in names["floor"])))
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} cannot be read ({error}); write it anew by `lockstep doctor table`") from None


_SINGLE = ("tokens", "lengths", "mask", "train", "infer")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path.parent} holds no {path.name} of a doctor; `lockstep doctor table` writes one")
    report = read_record(path, dict[str, Any], _CURE)
    schema = report.get("schema")
    if schema != SCHEMA:
        raise InputError(f"{path} has the schema {schema!r}, and this Lockstep reads {SCHEMA!r}; {_CURE}")
    read_record(path, _ReportShape, _CURE)
    return report


@dataclass(frozen=True)
class _ExaminedModel:
    path: str


@dataclass(frozen=True)
class _ReportShape:
    """The fields that readers count on; the contents of a cell are not checked."""

    verdict: str
    model: _ExaminedModel
    recipe: Mapping[str, Any]
    backends: Mapping[str, Mapping[str, Any]]
    pairs: Sequence[tuple[str, str]]
    cells: Sequence[Mapping[str, Any]]
