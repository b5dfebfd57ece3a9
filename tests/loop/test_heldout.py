"""Each held-out fault changes numbers, its counter-setting takes it back, and the controls are healthy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.batch import Batch
from lockstep.doctor.base import USUAL, Conditions
from lockstep.doctor.causes import CAUSES
from lockstep.doctor.selftest.fault import Case, Fault, Injected, Setup, build, built, healthy
from lockstep.doctor.selftest.heldout import HELD_OUT, HELD_OUT_HEALTHY, HELD_OUT_PAIRS
from lockstep.doctor.selftest.heldout_ground import HeldOutGround
from lockstep.types import Request

ALONE = Conditions(batch_size=1, layout="alone")
COUNTERS = {
    14: Conditions(parts=frozenset({"cache"})),
    15: Conditions(fresh=True),
    21: Conditions(parts=frozenset({"router"})),
    22: Conditions(batch_size=1),
    23: Conditions(batch_size=1),
    27: Conditions(unchunked=True),
    29: Conditions(evaluation=True),
    31: ALONE,
    32: ALONE,
    34: Conditions(parts=frozenset({"softmax"})),
}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> HeldOutGround:
    return HeldOutGround(tmp_path_factory.mktemp("held-out"))


def some(requests: tuple[Request, ...]) -> list[Request]:
    """The shortest and the longest, so that rows are padded and windows are left."""
    ordered = sorted(requests, key=lambda request: len(request.tokens))
    return ordered[:3] + ordered[-3:]


def drawn(case: Case, conditions: Conditions = USUAL) -> Batch:
    return case.infer.generate(some(case.requests), replace(case.sampling, max_tokens=24), conditions)


def gap(case: Case, train: Conditions = USUAL, infer: Conditions = USUAL) -> float:
    """Mean |Δ| of what the one side drew with and what the other scores, nats."""
    batch = drawn(case, infer)
    delta = case.train.score(batch, train).logprob - batch["sampler_logprob"]
    return float(delta[batch.mask].abs().mean())


def test_all_numbers_are_there_once_with_names_that_the_doctor_knows() -> None:
    assert [fault.number for fault in HELD_OUT] == list(range(1, 35))
    assert len({fault.name for fault in HELD_OUT}) == len(HELD_OUT)
    assert {cause for fault in HELD_OUT for cause in fault.causes} <= CAUSES.keys()


@pytest.mark.parametrize("fault", HELD_OUT, ids=lambda fault: fault.name)
def test_a_fault_shows_and_its_counter_setting_takes_it_back(fault: Fault, ground: HeldOutGround) -> None:
    floor = gap(healthy(ground, fault.large))
    faulty = build(ground, fault.large)
    assert gap(faulty) > 1.7 * floor + 1e-3
    if fault.number in COUNTERS:
        counter = COUNTERS[fault.number]
        both = {"train": USUAL, "infer": USUAL} | {str(fault.side): counter}
        assert gap(faulty, **both) < 3 * floor + 1e-5


@pytest.mark.parametrize("pair", HELD_OUT_PAIRS, ids=lambda pair: " and ".join(one.fault.name for one in pair))
def test_each_fault_of_a_pair_adds_to_the_other(pair: tuple[Injected, Injected], ground: HeldOutGround) -> None:
    gaps = [gap(build(ground, *faults)) for faults in (pair, pair[:1], pair[1:])]
    assert min(gaps) > 1e-3
    assert len(set(gaps)) == 3


@pytest.mark.parametrize("setup", HELD_OUT_HEALTHY, ids=lambda setup: f"{setup.model} {setup.dtype}")
def test_a_control_is_healthy(setup: Setup, ground: HeldOutGround) -> None:
    assert gap(built(ground, setup, ())) < (1e-5 if setup.dtype == "fp32" else 0.03)
