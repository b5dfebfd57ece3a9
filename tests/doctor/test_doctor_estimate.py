"""What a table says beforehand: operations, seconds by the bounds of the grid, and bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from doctor_tables import BILLION, asked, found
from transformers import AutoConfig

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.learner import LearnerBackend
from lockstep.doctor.base import Backend
from lockstep.doctor.estimate import Speed, TableCost, count_operations, measure_speed
from lockstep.doctor.measure import Bench, make_independent
from lockstep.doctor.options import DoctorGrid, Method
from lockstep.doctor.plan import Cell, cells_of
from lockstep.doctor.report import markdown
from lockstep.models.folder import read_config, skeleton
from lockstep.plan.sizes import Sizes
from lockstep_doctor.statistics import Compared

Models = Callable[..., Path]


def sizes_of(folder: Path) -> Sizes:
    return Sizes.of(skeleton(read_config(folder), str(folder)))


def test_operations_are_those_of_products_and_of_attention(models: Models) -> None:
    sizes = sizes_of(models("llama"))
    weights = sizes.layers * sizes.products + (sizes.head or sizes.table)
    assert count_operations(sizes, 10) == 10 * 2 * weights + 2 * sizes.layers * sizes.queries * 100


@pytest.fixture
def both(models: Models) -> dict[str, Backend]:
    folder = str(models("llama"))
    return {"hf": HFBackend(folder), "torch": LearnerBackend(folder)}


def test_seconds_follow_the_bounds_of_the_grid(models: Models, both: dict[str, Backend]) -> None:
    """With a step of a second and passes that cost nothing, seconds are steps; with passes of a second, passes."""
    sizes, grid = sizes_of(models("llama")), DoctorGrid(lengths=(10, 50), repeats=3, all_draw_to=10, max_tokens=200)
    steps = dict.fromkeys(both, Speed(0.0, 1e30, {1: 1.0, 8: 1.0}))
    passes = dict.fromkeys(both, Speed(1.0, 1e30, {1: 0.0, 8: 0.0}))
    free, floor = [Speed(0.0, 1e30, {})] * 2, [Speed(1.0, 1e30, {})] * 2

    def cost(speeds: dict[str, Speed], floor: list[Speed]) -> TableCost:
        return TableCost(Bench(both, both["hf"], grid), speeds, floor, sizes)

    short, long = Cell(10, "real", Method(), 8), Cell(50, "real", Method(), 8)
    assert cost(steps, free).count_seconds(short, 16) == 2 * (2 * 10) + 3 * (2 * 10)
    assert cost(steps, free).count_seconds(long, 16) == 2 * 50, "torch alone draws"
    assert cost(passes, floor).count_seconds(long, 16) == 4 * (2 + 2), "200 tokens are rescored"
    begun = Cell(50, "real", Method(), 8, beginning=30)
    assert cost(steps, free).count_seconds(begun, 16) == 2 * 20, "20 tokens are decoded"
    assert cost(passes, floor).count_seconds(begun, 16) == 4 * (2 + 2 + 1), "and their text is read"


def test_the_engine_alone_draws_long_responses(both: dict[str, Backend]) -> None:
    bench = Bench(both, both["hf"], DoctorGrid(all_draw_to=100))
    assert bench.drawers(Cell(100, "real", Method(), 1)) == ["hf", "torch"]
    assert bench.drawers(Cell(101, "real", Method(), 1)) == ["torch"]


def test_rates_are_those_of_this_machine(both: dict[str, Backend], models: Models) -> None:
    speed = measure_speed(both["torch"], sizes_of(models("llama")), (1, 4))
    assert set(speed.steps) == {1, 4}
    assert min(*speed.steps.values(), speed.rate) > 0
    assert speed.overhead >= 0


def test_bytes_are_those_of_the_largest_pass_or_batch(both: dict[str, Backend]) -> None:
    """A model of a billion parameters, by its shapes alone."""
    with torch.device("meta"):
        sizes = Sizes.of(skeleton(AutoConfig.for_model(**BILLION), "BILLION"))
    assert 1.0e9 < sizes.policy < 1.3e9

    def count_bytes(grid: DoctorGrid) -> int:
        return TableCost(Bench(both, both["hf"], grid), {}, [], sizes).count_bytes(cells_of(grid))

    logits_and_softmax = 2 * 4 * 2000 * 32000
    assert count_bytes(DoctorGrid(lengths=(100, 1000), pass_tokens=2000, batch_sizes=(1,))) > logits_and_softmax
    weights_of_a_chunk = 3 * 4 * 32 * 1024 * 10000
    assert count_bytes(DoctorGrid(lengths=(10000,))) > weights_of_a_chunk


def test_a_table_says_it_and_what_it_took(both: dict[str, Backend], models: Models) -> None:
    what = found(asked(models("llama"), "grid.lengths=[12]", "grid.repeats=1"), both["hf"], both["torch"])
    assert what.predicted.seconds > 0
    assert what.predicted.sentence.startswith("predicted: ")
    assert what.memory > 10**8


def test_a_table_names_the_rows_that_are_judged_by_segments(
    both: dict[str, Backend], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.doctor.measure.SHORTEST_SEGMENT", 2)
    options = "grid.lengths=[24]", "grid.sequences=3", "grid.max_steps=60", "grid.repeats=1"
    few = found(asked(models("llama"), *options, "grid.batch_sizes=[1]"), both["hf"], both["torch"])
    assert "judged by segments of fewer than 8 long sequences" in markdown(few)
    many = found(asked(models("llama"), "grid.lengths=[12]", "grid.repeats=1"), both["hf"], both["torch"])
    assert "judged by segments" not in markdown(many)


def test_a_table_beyond_the_context_takes_nothing(both: dict[str, Backend], models: Models) -> None:
    what = found(asked(models("llama"), "grid.lengths=[4000]", "grid.repeats=1"), both["hf"], both["torch"])
    assert {row.state for row in what.rows} == {"beyond context"}
    assert what.predicted.seconds == 0


def test_one_long_sequence_is_judged_by_its_segments() -> None:
    delta = torch.linspace(0, 1, 1000).double()
    one = Compared(delta, torch.zeros(1000).double(), torch.tensor([600, 400]), torch.arange(1000))
    parts = one.in_segments(10, 50)
    assert parts.lengths.tolist() == [100] * 10
    assert parts.totals(parts.delta).shape == (10, 2)
    assert one.in_segments(10, 101) is one, "they would be too short"


@pytest.mark.parametrize(("shortest", "count"), [(200, 2), (125, 8), (90, 11), (10, 16)])
def test_there_are_as_many_segments_as_are_long_enough(
    monkeypatch: pytest.MonkeyPatch, shortest: int, count: int
) -> None:
    monkeypatch.setattr("lockstep.doctor.measure.SHORTEST_SEGMENT", shortest)
    delta = torch.linspace(0, 1, 1000).double()
    two = Compared(delta, torch.zeros(1000).double(), torch.tensor([500, 500]), torch.arange(1000))
    assert make_independent(two).lengths.numel() == pytest.approx(count, abs=1)
