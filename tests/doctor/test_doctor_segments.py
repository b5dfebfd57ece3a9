"""Who draws the responses of a cell, and how few long ones are judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from doctor_tables import asked, found

from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.learner import LearnerBackend
from lockstep_doctor.statistics import TokenComparison
from lockstep_doctor.table import measure_table
from lockstep_doctor.table.base import Backend
from lockstep_doctor.table.measure import CellMeasurer, make_independent
from lockstep_doctor.table.options import DoctorGrid, SamplingMethod
from lockstep_doctor.table.plan import TableCell
from lockstep_doctor.table.report import render_markdown

Models = Callable[..., Path]


@pytest.fixture
def both(models: Models) -> dict[str, Backend]:
    folder = str(models("llama"))
    return {"hf": HFBackend(folder), "torch": LearnerBackend(folder)}


def test_responses_longer_than_all_draw_to_are_generated_by_engine_only(
    both: dict[str, Backend],
) -> None:
    bench = CellMeasurer(both, both["hf"], DoctorGrid(all_draw_to=100))
    assert bench.list_drawers(TableCell(100, "real", SamplingMethod(), 1)) == ["hf", "torch"]
    assert bench.list_drawers(TableCell(101, "real", SamplingMethod(), 1)) == ["torch"]


def test_table_marks_rows_whose_bounds_come_from_segments(
    both: dict[str, Backend], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep_doctor.table.measure.SHORTEST_SEGMENT", 2)
    options = "grid.lengths=[24]", "grid.sequences=3", "grid.max_steps=60", "grid.repeats=1"
    few = found(asked(models("llama"), *options, "grid.batch_sizes=[1]"), both["hf"], both["torch"])
    assert "bounds from segments of fewer than 8 long sequences" in render_markdown(few)
    many = found(
        asked(models("llama"), "grid.lengths=[12]", "grid.repeats=1"), both["hf"], both["torch"]
    )
    assert "judged by segments" not in render_markdown(many)


def test_sequence_is_split_into_equal_segments_unless_too_short() -> None:
    delta = torch.linspace(0, 1, 1000).double()
    one = TokenComparison(
        delta, torch.zeros(1000).double(), torch.tensor([600, 400]), torch.arange(1000)
    )
    parts = one.in_segments(10, 50)
    assert parts.lengths.tolist() == [100] * 10
    assert parts.sum_clusters(parts.delta).shape == (10, 2)
    assert one.in_segments(10, 101) is one, "they would be too short"


@pytest.mark.parametrize(("shortest", "count"), [(200, 2), (125, 8), (90, 11), (10, 16)])
def test_segment_count_follows_minimum_segment_length(
    monkeypatch: pytest.MonkeyPatch, shortest: int, count: int
) -> None:
    monkeypatch.setattr("lockstep_doctor.table.measure.SHORTEST_SEGMENT", shortest)
    delta = torch.linspace(0, 1, 1000).double()
    two = TokenComparison(
        delta, torch.zeros(1000).double(), torch.tensor([500, 500]), torch.arange(1000)
    )
    assert make_independent(two).lengths.numel() == pytest.approx(count, abs=1)


def test_time_budget_skips_cells_predicted_to_exceed_it(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cells of 10 s each are measured; those of twice the length would take 20 s, and 5 s are
    left.
    """
    now = 0.0
    draw = CellMeasurer.draw_samples

    def draw_slowly(bench: CellMeasurer, *asked: Any) -> Any:
        nonlocal now
        now += 10
        return draw(bench, *asked)

    monkeypatch.setattr(measure_table, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(CellMeasurer, "draw_samples", draw_slowly)
    folder = str(models("llama"))
    what = found(
        asked(models("llama"), "grid.budget_s=25"), HFBackend(folder), LearnerBackend(folder)
    )
    states = [row.state for row in what.rows]
    assert states == ["measured"] * 2 + ["cut by budget"] * 2 + ["beyond context"] * 2
