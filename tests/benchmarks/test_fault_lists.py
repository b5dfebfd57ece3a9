"""Each fault of the later lists changes numbers, in both strengths, and its counter-setting takes that back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
from fault_gaps import ALONE, gaps, mean
from tiers import one_in

from benchmarks.doctor_faults.fault import Fault, Setup, build, healthy
from benchmarks.doctor_faults.fifth import FIFTH
from benchmarks.doctor_faults.fourth import FOURTH
from benchmarks.doctor_faults.ground import make_ground
from benchmarks.doctor_faults.heldout import HELD_OUT
from benchmarks.doctor_faults.model_ground import Ground
from benchmarks.doctor_faults.places import PLACES
from benchmarks.doctor_faults.seventh import SEVENTH
from benchmarks.doctor_faults.sides import Undo
from benchmarks.doctor_faults.sixth import SIXTH
from benchmarks.doctor_faults.third import THIRD
from benchmarks.doctor_faults.tuning import TUNING
from lockstep.doctor.base import USUAL, Conditions

pytestmark = pytest.mark.full

Floor = Callable[[Setup], float]


@dataclass(frozen=True)
class Listed:
    """A list, how much of everything is in it, and how much its faults show at least.

    Attributes:
        faults: It.
        first: Its first number; the others follow.
        causes: So many first names differ, at least.
        trained: So many faults are of the training side.
        models: So many models differ, at least.
        large: Least mean exp|Δ| of a large fault.
        small: Least mean exp|Δ| of a small fault.
        ratio: So many times the mean |Δ| of the small fault lies below that of the large one.
    """

    faults: tuple[Fault, ...]
    first: int
    causes: int
    trained: int
    models: int
    large: float = 1.05
    small: float = 1.005
    ratio: float = 1.5


LISTS = {
    "third": Listed(THIRD, 201, 12, 8, 10, 1.1, 1.003, 1.0),
    "fourth": Listed(FOURTH, 301, 18, 9, 20),
    "fifth": Listed(FIFTH, 401, 18, 10, 20),
    "sixth": Listed(SIXTH, 501, 18, 10, 18),
    "seventh": Listed(SEVENTH, 601, 20, 10, 20),
    "held-out": Listed(HELD_OUT, 701, 20, 10, 20),
}
FAULTS = [(listed, fault) for listed in LISTS.values() for fault in listed.faults]
NUMBERED = {fault.number: fault for listed in LISTS.values() for fault in listed.faults}
COUNTERS = {
    214: Undo(what="cache"),
    216: Conditions(kernel="sdpa"),
    217: ALONE,
    218: Undo(what="training"),
    219: ALONE,
    220: ALONE,
    305: Undo(what="softmax"),
    308: Conditions(kernel="eager"),
    315: Undo(what="cache"),
    316: ALONE,
    317: Undo(what="training"),
    415: Undo(what="chunks"),
    416: Conditions(fresh=True),
    417: ALONE,
    418: ALONE,
    420: ALONE,
    501: ALONE,
    505: Undo(what="cache"),
    509: ALONE,
    511: Undo(what="head"),
    516: Undo(what="softmax"),
    605: ALONE,
    609: Undo(what="rope"),
    614: Conditions(kernel="eager"),
    620: ALONE,
    704: Undo(what="head"),
    705: Undo(config=(("rope_parameters.original_max_position_embeddings", 48),)),
    710: Undo(what="training"),
    716: Undo(what="cache"),
    717: Conditions(fresh=True),
    719: ALONE,
    720: ALONE,
}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return make_ground(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def floor(ground: Ground) -> Floor:
    """Mean |Δ| of the two sides without a fault."""
    return cache(lambda setup: mean(gaps(healthy(ground, replace(THIRD[0], setup=lambda _: setup).large))))


def test_tuning_and_held_out_share_no_number() -> None:
    assert len({fault.number for fault in TUNING}) == len(TUNING)
    assert {fault.number for fault in HELD_OUT}.isdisjoint(fault.number for fault in TUNING)


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
def test_numbers_and_names_are_there_once_and_causes_are_some_that_the_doctor_knows(listed: Listed) -> None:
    assert [fault.number for fault in listed.faults] == list(range(listed.first, listed.first + 20))
    assert len({fault.name for fault in listed.faults}) == len(listed.faults)
    assert {cause for fault in listed.faults for cause in fault.causes} <= PLACES.keys()


@pytest.mark.parametrize("listed", LISTS.values(), ids=LISTS)
def test_causes_sides_and_models_vary(listed: Listed) -> None:
    assert len({fault.causes[0] for fault in listed.faults}) >= listed.causes
    assert sum(fault.side == "train" for fault in listed.faults) == listed.trained
    setups = [fault.large.setup for fault in listed.faults]
    assert len({setup.model for setup in setups}) >= listed.models
    assert {setup.train for setup in setups} == {setup.infer for setup in setups} == {"hf", "torch"}


@pytest.mark.parametrize("one", one_in(9, FAULTS, lambda one: one[1].name))
def test_a_fault_shows_in_both_strengths(one: tuple[Listed, Fault], ground: Ground, floor: Floor) -> None:
    listed, fault = one
    large, small = gaps(build(ground, fault.large)), gaps(build(ground, fault.small))
    assert max(floor(fault.large.setup), floor(fault.small.setup)) < 1e-5
    assert float(large.exp().mean()) > listed.large
    assert float(small.exp().mean()) > listed.small
    assert listed.ratio * mean(small) < mean(large)


@pytest.mark.parametrize("number", one_in(5, COUNTERS))
def test_a_counter_setting_takes_a_fault_back(number: int, ground: Ground, floor: Floor) -> None:
    fault = NUMBERED[number]
    undone = {"train": USUAL, "infer": USUAL} | {str(fault.side): COUNTERS[number]}
    assert mean(gaps(build(ground, fault.large), **undone)) < 3 * floor(fault.large.setup) + 1e-6
