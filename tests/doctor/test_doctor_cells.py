"""A table that is stopped keeps the cells that it has measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from doctor_tables import asked, found

from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.learner import LearnerBackend
from lockstep_doctor.table.base import USUAL, Conditions
from lockstep_doctor.table.report import Cells, columns_of, markdown


def test_a_table_that_was_stopped_goes_on_where_it_was(models: Callable[..., Path], tmp_path: Path) -> None:
    class Mortal(LearnerBackend):
        drawn, lives = 0, 1000

        def generate(
            self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
        ) -> Batch:
            self.drawn += 1
            if self.drawn > self.lives:
                raise KeyboardInterrupt
            return super().generate(requests, sampling, conditions)

    folder, recipe, cells = str(models("llama")), asked(models("llama"), "grid.repeats=1"), Cells(tmp_path)
    undisturbed, stopped, again = Mortal(folder), Mortal(folder), Mortal(folder)
    at_once = found(recipe, HFBackend(folder), undisturbed)
    stopped.lives = undisturbed.drawn // 2
    unfinished: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        found(recipe, HFBackend(folder), stopped, cells, lambda table: unfinished.append(markdown(table)))
    assert "not measured yet" in unfinished[-1]
    assert "PASS |" in unfinished[-1]
    in_parts = found(recipe, HFBackend(folder), again, cells)
    assert again.drawn < undisturbed.drawn
    assert in_parts.judged == at_once.judged
    assert in_parts.repeats == at_once.repeats
    columns = columns_of(in_parts.rows)
    assert all(torch.equal(columns[name], column) for name, column in columns_of(at_once.rows).items())
