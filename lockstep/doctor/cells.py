"""Cells of a table as they are measured, a file each, so that a stopped table resumes.

NN.safetensors   tokens and log-probabilities, as in `columns.safetensors`; what is no tensor is in its header
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from lockstep.batch import Batch
from lockstep.doctor.judging import TableRow
from lockstep.doctor.measure import Drawn, Repeated
from lockstep.doctor.plan import Cell
from lockstep.doctor.report import columns_of
from lockstep.whole_files import write_whole

_OURS = ("tokens", "lengths", "mask", "cluster")


class Cells:
    """The files.

    Args:
        folder: Of the report; it is that of one grid, model and prompts alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "cells"

    def keep(self, number: int, row: TableRow) -> None:
        """Writes a measured cell, whole or not at all."""
        self._folder.mkdir(exist_ok=True)
        drawers = [{"drawer": one.drawer, "dtypes": dict(one.dtypes)} for one in row.drawn]
        said = {"drawers": drawers, "repeats": [asdict(one) for one in row.repeats], "seconds": row.seconds}
        write_whole(self._file(number), [save(columns_of([row]), {"said": json.dumps(said)})])

    def read(self, number: int, cell: Cell) -> TableRow | None:
        """A cell as it was measured; None where it was not."""
        if not self._file(number).is_file():
            return None
        with safe_open(self._file(number), "pt") as file:
            said: dict[str, Any] = json.loads(file.metadata()["said"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        drawn = tuple(_read_samples(one, cell, tensors) for one in said["drawers"])
        repeats = tuple(Repeated(**one) for one in said["repeats"])
        return TableRow(cell, "measured", drawn, repeats, said["seconds"])

    def drop(self) -> None:
        """Takes the files away; the report holds what was in them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:02}.safetensors"


def _read_samples(said: Mapping[str, Any], cell: Cell, tensors: Mapping[str, Tensor]) -> Drawn:
    start = f"0.{said['drawer']}."
    own = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
    tokens, lengths, mask, cluster = (own.pop(name) for name in _OURS)
    batch = Batch(tokens.long(), lengths, {"mask": mask}, sampling=cell.sampling)
    return Drawn(said["drawer"], batch, cluster, own, said["dtypes"])
