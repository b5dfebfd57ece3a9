"""The bounds of a grid take effect: rows of a pass, and who draws."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from doctor_tables import altered_torch, asked, scaled
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.report.progress import show_progress
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.learner import LearnerBackend
from lockstep_doctor.table import measure
from lockstep_doctor.table.base import USUAL, BackendConditions
from lockstep_doctor.table.measure import CellMeasurer
from lockstep_doctor.table.measure_table import TableMeasurement
from lockstep_doctor.table.plan import PromptSource, cells_of, requests_for


class Noting(LearnerBackend):
    """Notes how many sequences it is asked to score side by side."""

    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        self.rows = conditions.batch_size
        return super().score(batch, conditions)


@pytest.mark.parametrize(("tokens", "rows"), [(16384, 8), (70, 3), (1, 1)])
def test_rows_scored_per_pass_are_limited_by_token_budget(
    models: Callable[..., Path], tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sequences of at most 22 tokens."""
    folder = str(models("llama"))
    monkeypatch.setattr(measure, "PASS_TOKENS", tokens)
    recipe = asked(models("llama"), "grid.lengths=[12]", "grid.repeats=1")
    noting = Noting(folder)
    bench = CellMeasurer({"torch": noting}, HFBackend(folder), recipe.grid)
    cell = cells_of(recipe.grid)[0]
    bench.draw_samples(
        cell, requests_for(cell, PromptSource(recipe).read_prompts("real", 30), 8, seed=0)
    )
    assert noting.rows == rows


def test_two_backends_are_compared_on_samples_of_a_third_backend(
    models: Callable[..., Path],
) -> None:
    folder = str(models("llama"))
    recipe = asked(models("llama"), "grid.lengths=[12]", "grid.repeats=1", "grid.all_draw_to=1")
    silent = altered_torch(folder, scaled)
    silent.name = "silent"
    with show_progress("a table", stream=io.StringIO()) as shown:
        backends = {"hf": HFBackend(folder), "silent": silent, "torch": LearnerBackend(folder)}
        what = TableMeasurement(recipe, backends, shown).measure_cells()
    assert {drawn.drawer for row in what.rows for drawn in row.drawn} == {"torch"}
    assert {pair: one.verdict for (_, pair), one in what.judged.items()} == {
        ("hf", "silent"): "FAIL",
        ("hf", "torch"): "PASS",
        ("silent", "torch"): "FAIL",
    }
