"""Each seventh fault changes numbers, in both strengths, and its counter-setting takes that back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from fault_gaps import ALONE, gaps, mean

from lockstep.doctor.base import USUAL, Conditions
from lockstep.doctor.causes import CAUSES
from lockstep.doctor.selftest.fault import Fault, Setup, build, healthy
from lockstep.doctor.selftest.ground import Ground
from lockstep.doctor.selftest.seventh import SEVENTH
from lockstep.doctor.selftest.tuning import TUNING

COUNTERS = {
    605: ALONE,
    609: Conditions(parts=frozenset({"rope"})),
    614: Conditions(kernel="eager"),
    620: ALONE,
}
Floor = Callable[[Setup], float]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("seventh"))


@pytest.fixture(scope="module")
def floor(ground: Ground) -> Floor:
    """Mean |Δ| of the two sides without a fault."""
    return cache(lambda setup: mean(gaps(healthy(ground, replace(SEVENTH[0], setup=lambda _: setup).large))))


def test_numbers_and_names_are_there_once_and_causes_are_some_that_the_doctor_knows() -> None:
    assert len({fault.name for fault in SEVENTH}) == len(SEVENTH)
    assert {fault.number for fault in SEVENTH}.isdisjoint(fault.number for fault in TUNING)
    assert [fault.number for fault in SEVENTH] == list(range(601, 621))
    assert {cause for fault in SEVENTH for cause in fault.causes} <= CAUSES.keys()


def test_causes_sides_and_models_vary() -> None:
    assert len({fault.causes[0] for fault in SEVENTH}) >= 18
    assert sum(fault.side == "train" for fault in SEVENTH) == 10
    setups = [fault.large.setup for fault in SEVENTH]
    assert len({setup.model for setup in setups}) == 20
    assert {setup.train for setup in setups} == {setup.infer for setup in setups} == {"hf", "torch"}


@pytest.mark.parametrize("fault", SEVENTH, ids=lambda fault: fault.name)
def test_a_fault_shows_in_both_strengths(fault: Fault, ground: Ground, floor: Floor) -> None:
    large, small = gaps(build(ground, fault.large)), gaps(build(ground, fault.small))
    assert max(floor(fault.large.setup), floor(fault.small.setup)) < 1e-5
    assert float(large.exp().mean()) > 1.05
    assert float(small.exp().mean()) > 1.005
    assert 1.5 * mean(small) < mean(large)


@pytest.mark.parametrize("number", COUNTERS)
def test_a_counter_setting_takes_a_fault_back(number: int, ground: Ground, floor: Floor) -> None:
    (fault,) = (fault for fault in SEVENTH if fault.number == number)
    undone = {"train": USUAL, "infer": USUAL} | {str(fault.side): COUNTERS[number]}
    assert mean(gaps(build(ground, fault.large), **undone)) < 3 * floor(fault.large.setup) + 1e-6
