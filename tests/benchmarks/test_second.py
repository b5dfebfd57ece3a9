"""Each fault of the second list changes numbers, its counter-setting takes it back, and the controls are healthy."""

from __future__ import annotations

import pytest
from fault_gaps import ALONE, gaps, mean
from tiers import one_in

from benchmarks.doctor_faults.fault import Case, Fault, Injected, Setup, build, built, healthy
from benchmarks.doctor_faults.ground import make_ground
from benchmarks.doctor_faults.model_ground import Ground
from benchmarks.doctor_faults.places import PLACES
from benchmarks.doctor_faults.second import SECOND, SECOND_HEALTHY, SECOND_PAIRS
from benchmarks.doctor_faults.sides import Undo
from lockstep.doctor.base import USUAL, Conditions

pytestmark = pytest.mark.full

COUNTERS = {
    114: Undo(what="cache"),
    115: Conditions(fresh=True),
    121: Undo(what="router"),
    122: Conditions(batch_size=1),
    123: Conditions(batch_size=1),
    127: Undo(what="chunks"),
    129: Undo(what="training"),
    131: ALONE,
    132: ALONE,
    134: Undo(what="softmax"),
}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return make_ground(tmp_path_factory.mktemp("second"))


def gap(case: Case, train: Conditions = USUAL, infer: Conditions = USUAL) -> float:
    """Mean |Δ| of what the one side drew with and what the other scores, nats."""
    return mean(gaps(case, train, infer))


def test_all_numbers_are_there_once_with_names_that_the_doctor_knows() -> None:
    assert [fault.number for fault in SECOND] == list(range(101, 135))
    assert len({fault.name for fault in SECOND}) == len(SECOND)
    assert {cause for fault in SECOND for cause in fault.causes} <= PLACES.keys()


@pytest.mark.parametrize("fault", one_in(8, SECOND, lambda fault: fault.name))
def test_a_fault_shows_and_its_counter_setting_takes_it_back(fault: Fault, ground: Ground) -> None:
    floor = gap(healthy(ground, fault.large))
    faulty = build(ground, fault.large)
    assert gap(faulty) > 1.7 * floor + 1e-3
    if fault.number in COUNTERS:
        counter = COUNTERS[fault.number]
        both = {"train": USUAL, "infer": USUAL} | {str(fault.side): counter}
        assert gap(faulty, **both) < 3 * floor + 1e-5


@pytest.mark.parametrize("pair", one_in(5, SECOND_PAIRS, lambda pair: " and ".join(one.fault.name for one in pair)))
def test_each_fault_of_a_pair_adds_to_the_other(pair: tuple[Injected, Injected], ground: Ground) -> None:
    both, first, second = (gap(build(ground, *faults)) for faults in (pair, pair[:1], pair[1:]))
    assert min(both, first, second) > 1e-3
    assert len({both, first, second}) == 3


@pytest.mark.parametrize("setup", SECOND_HEALTHY, ids=lambda setup: f"{setup.model} {setup.dtype}")
def test_a_control_is_healthy(setup: Setup, ground: Ground) -> None:
    assert gap(built(ground, setup, ())) < (1e-5 if setup.dtype == "fp32" else 0.03)
