"""Each held-out fault changes numbers, in both strengths, and its counter-setting takes that back."""

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
from lockstep.doctor.selftest.heldout import HELD_OUT
from lockstep.doctor.selftest.tuning import TUNING

COUNTERS = {
    501: ALONE,
    505: Conditions(parts=frozenset({"cache"})),
    509: ALONE,
    511: Conditions(parts=frozenset({"head"})),
    516: Conditions(parts=frozenset({"softmax"})),
}
Floor = Callable[[Setup], float]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("held-out"))


@pytest.fixture(scope="module")
def floor(ground: Ground) -> Floor:
    """Mean |Δ| of the two sides without a fault."""
    return cache(lambda setup: mean(gaps(healthy(ground, replace(HELD_OUT[0], setup=lambda _: setup).large))))


def test_numbers_and_names_are_there_once_and_causes_are_some_that_the_doctor_knows() -> None:
    assert len({fault.name for fault in HELD_OUT}) == len(HELD_OUT)
    assert {fault.number for fault in HELD_OUT}.isdisjoint(fault.number for fault in TUNING)
    assert [fault.number for fault in HELD_OUT] == list(range(501, 521))
    assert {cause for fault in HELD_OUT for cause in fault.causes} <= CAUSES.keys()


def test_causes_sides_and_models_vary() -> None:
    assert len({fault.causes[0] for fault in HELD_OUT}) >= 18
    assert sum(fault.side == "train" for fault in HELD_OUT) == 10
    setups = [fault.large.setup for fault in HELD_OUT]
    assert len({setup.model for setup in setups}) == 18
    assert {setup.train for setup in setups} == {setup.infer for setup in setups} == {"hf", "torch"}


@pytest.mark.parametrize("fault", HELD_OUT, ids=lambda fault: fault.name)
def test_a_fault_shows_in_both_strengths(fault: Fault, ground: Ground, floor: Floor) -> None:
    large, small = gaps(build(ground, fault.large)), gaps(build(ground, fault.small))
    assert max(floor(fault.large.setup), floor(fault.small.setup)) < 1e-5
    assert float(large.exp().mean()) > 1.05
    assert float(small.exp().mean()) > 1.005
    assert 1.5 * mean(small) < mean(large)


@pytest.mark.parametrize("number", COUNTERS)
def test_a_counter_setting_takes_a_fault_back(number: int, ground: Ground, floor: Floor) -> None:
    (fault,) = (fault for fault in HELD_OUT if fault.number == number)
    undone = {"train": USUAL, "infer": USUAL} | {str(fault.side): COUNTERS[number]}
    assert mean(gaps(build(ground, fault.large), **undone)) < 3 * floor(fault.large.setup) + 1e-6
