"""The lists of faults: every fault really changes numbers, healthy sides agree, and the score counts right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
from tiers import one_in

from benchmarks.doctor_faults.__main__ import main as run_benchmark
from benchmarks.doctor_faults.controls import CONTROLS, Control, healthy_runs
from benchmarks.doctor_faults.fault import Case, Fault, Injected, Setup, build, healthy
from benchmarks.doctor_faults.lists import FAULTS, HELD_OUT, MECHANISMS, NUMBERED, TUNING, of_round
from benchmarks.doctor_faults.models import MODELS, Ground
from benchmarks.doctor_faults.pairs import PAIRS
from benchmarks.doctor_faults.places import COLUMN, PLACES
from benchmarks.doctor_faults.run import Bench, Suite, Trial, selftest
from benchmarks.doctor_faults.score import Outcome, Row, markdown
from benchmarks.doctor_faults.suites import SUITES, Which
from lockstep.report.progress import Progress, show_progress

FIRST = of_round(1)
FEW = 8
HEAD_IN_FP32 = 20
"""It makes the gap smaller: both heads in bf16 are farther apart than one."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"))


@pytest.fixture(scope="module")
def floor(ground: Ground) -> Callable[[Injected], float]:
    """How far the two sides are apart without the fault."""

    @cache
    def of(setup: Setup) -> float:
        return apart(healthy(ground, replace(FIRST[0], setup=lambda _: setup).large))

    return lambda injected: of(injected.setup)


def apart(case: Case, tokens: int = 24) -> float:
    """Mean |Δ| of decoding against the trainer's scores, nats."""
    drawn = case.infer.generate(case.requests[:FEW], replace(case.sampling, max_tokens=tokens))
    off = case.train.score(drawn) - drawn["sampler_logprob"]
    case.close()
    return float(off[drawn.mask].abs().mean())


@pytest.mark.parametrize("fault", one_in(6, [f for f in FIRST if f.number != HEAD_IN_FP32], lambda fault: fault.name))
def test_a_large_fault_moves_numbers_far_beyond_the_floor(
    fault: Fault, ground: Ground, floor: Callable[[Injected], float]
) -> None:
    usual = floor(fault.large)
    assert usual < 1e-4
    assert apart(build(ground, fault.large)) > max(10 * usual, 1e-3)


@pytest.mark.parametrize("number", [7, 11, 14, 30, 34])
def test_a_small_fault_moves_numbers_less(number: int, ground: Ground, floor: Callable[[Injected], float]) -> None:
    fault = NUMBERED[number]
    small = apart(build(ground, fault.small))
    assert 3 * floor(fault.small) < small < apart(build(ground, fault.large))


def test_one_head_in_fp32_is_nearer_than_both_in_bf16(ground: Ground, floor: Callable[[Injected], float]) -> None:
    fault = NUMBERED[HEAD_IN_FP32]
    assert 0.01 < apart(build(ground, fault.large)) != pytest.approx(floor(fault.large), rel=1e-3)


def test_the_list_is_whole() -> None:
    assert [fault.number for fault in FIRST] == list(range(1, 35))
    assert Counter(fault.round for fault in FAULTS) == {1: 34, 2: 34} | dict.fromkeys(range(3, 9), 20)
    assert sum(len(faults) for faults in MECHANISMS.values()) == len(NUMBERED) == len({fault.name for fault in FAULTS})
    assert len(TUNING) == 168
    assert of_round(8) == HELD_OUT
    assert {cause for fault in FAULTS for cause in fault.causes} <= PLACES.keys()
    assert len(MODELS) == len(set(MODELS))
    assert len(PAIRS) == 10
    for first, second in PAIRS:
        assert not set(first.fault.causes) & set(second.fault.causes)
        first.setup.joined(second.setup)


def test_faults_that_need_different_surroundings_cannot_be_put_together(ground: Ground) -> None:
    with pytest.raises(ValueError, match="model cannot be"):
        build(ground, NUMBERED[27].large, NUMBERED[10].large)


def test_both_faults_of_a_pair_act(ground: Ground) -> None:
    first, second = PAIRS[0]
    both = apart(build(ground, first, second))
    assert both != apart(build(ground, first))
    assert both != apart(build(ground, second))


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_healthy_sides_agree(control: Control, ground: Ground) -> None:
    limit = 1e-4 if control.setup.dtype is None else 0.1
    assert apart(control.build(ground), tokens=8) < limit


def test_fifty_healthy_runs_take_every_configuration_in_turn() -> None:
    runs = [(control.name, seed) for control, seed in healthy_runs(50)]
    assert len(set(runs)) == 50
    assert {name for name, _ in runs} == {control.name for control in CONTROLS}


@pytest.mark.parametrize(
    ("expected", "found", "disagrees", "outcome"),
    [
        ((("rope", "norm_eps"),), ("attn_norm",), True, "right"),
        ((("rope",),), ("rotary_emb", "down"), True, "wrong"),
        ((("rope",),), (), True, "unexplained"),
        ((("rope",),), (), False, "missed"),
        ((("rope",), ("top_k",)), (COLUMN, "q"), True, "right"),
        ((("norm_eps",), ("top_k",)), (COLUMN,), True, "half"),
        ((), (), False, "quiet"),
        ((), (), True, "false alarm"),
        ((), ("down",), False, "false alarm"),
    ],
)
def test_outcome(
    expected: tuple[tuple[str, ...], ...], found: tuple[str, ...], disagrees: bool, outcome: Outcome
) -> None:
    assert row(expected=expected, found=found, disagrees=disagrees).outcome == outcome


def test_the_score_stands_next_to_what_single_numbers_see() -> None:
    rows = [
        row("loud", (("rope",),), ("attn",), mult_prob_error=1.2, prob_difference=0.3),
        row("faint", (("bias",),), ("embed",), mult_prob_error=1.01, prob_difference=0.001),
        row("well", (), (), disagrees=False, mult_prob_error=1.02, prob_difference=0.01),
    ]
    text = markdown(rows)
    assert "| loud | rope | attn | right | 1.2 | 0.3 |" in text
    assert "| tuning | scoring | 2 | 1 | 1 | 0 | 0 | 0 | 1.0, 1.0 |" in text
    assert "2 cases with faults: 1 right, 0 half, 1 wrong, 0 unexplained, 0 missed" in text
    assert "mean e^|Δ| > 1.05 sees 1 of them" in text
    assert "1 healthy cases: 0 false alarms" in text
    assert "mean |p − p'| > 0.01, the largest of a healthy case, sees 1 of those with faults" in text


@pytest.mark.full
def test_a_case_that_is_done_is_not_done_again(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, (fault, *_) = tmp_path / "cases.jsonl", TUNING

    def few() -> Case:
        case = build(ground, fault.large)
        return replace(case, requests=case.requests[:FEW], sampling=replace(case.sampling, max_tokens=16))

    def never() -> Case:
        raise AssertionError("built again")

    def rows(make: Callable[[], Case], shown: Progress, name: str = "one") -> Row:
        return Bench(file, shown).row(Trial(name, ("tuning", "scoring"), (fault.causes,), make))

    with show_progress("test") as shown:
        first = rows(few, shown)
        assert first.mult_prob_error > 1.1
        assert rows(never, shown) == first
        file.write_text(file.read_text() + '{"name": "cut of')
        second = rows(few, shown, "two")
        assert rows(never, shown, "two") == second
        assert rows(never, shown) == first
    assert capsys.readouterr().err.count("one: ") == 3


def remember(suite: Suite, out: Path) -> str:
    """Writes down what a run of a suite that was stopped at its end remembers: all is found, and nothing else."""
    faults = [(one,) for fault in suite.faults for one in (fault.large, fault.small)]
    rows = [
        row(
            " + ".join(f"{one.fault.number} {one.fault.name} {one.magnitude:.3g}" for one in together) + ", seed 0",
            tuple(one.fault.causes for one in together),
            tuple(min(PLACES[one.fault.causes[0]]) for one in together),
        )
        for together in (*faults, *suite.pairs)
    ]
    rows += [row(f"{control.name}, seed {own}", disagrees=False) for control, own in suite.healthy]
    text = "".join(json.dumps(asdict(one)) + "\n" for one in rows)
    (out / "cases.jsonl").write_text(text)
    return text


@pytest.mark.parametrize(("which", "ill", "well"), [("heldout", 40, 0), ("pairs", 10, 0), ("all", 386, 50)])
def test_the_benchmark_goes_through_a_part_of_the_lists(
    which: Which, ill: int, well: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remembered = remember(SUITES[which], tmp_path)
    assert run_benchmark(["--which", which, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"{ill} cases with faults: {ill} right" in told
    assert (f"{well} healthy cases: 0 false alarms" in told) == bool(well)
    assert (tmp_path / "cases.jsonl").read_text() == remembered, "it went through a case that is not of the part"


def test_a_self_test_builds_and_examines_its_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest(None, tmp_path, suite=Suite("one", (NUMBERED[6],), notes=("of one fault",))) == 0
    assert "2 cases with faults: 2 right" in capsys.readouterr().out
    assert (tmp_path / "one.md").read_text().endswith("- of one fault\n")
    assert [one["outcome"] for one in json.loads((tmp_path / "one.json").read_text())] == ["right", "right"]


def row(
    name: str = "one",
    expected: tuple[tuple[str, ...], ...] = (),
    found: tuple[str, ...] = (),
    disagrees: bool = True,
    mult_prob_error: float = 1.0,
    prob_difference: float = 0.0,
) -> Row:
    return Row(name, ("tuning", "scoring"), expected, found, disagrees, mult_prob_error, prob_difference, 1.0)


@pytest.mark.proof
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize(
    ("suite", "least"),
    [
        (SUITES["tuning"], 260),
        (SUITES["heldout"], 34),
        (SUITES["pairs"], 7),
        (SUITES["controls"], 50),
    ],
    ids=lambda value: value.name if isinstance(value, Suite) else "",
)
def test_the_whole_benchmark(suite: Suite, least: int, tmp_path: Path) -> None:
    selftest(None, tmp_path, suite=suite)
    rows = json.loads((tmp_path / f"{suite.name}.json").read_text())
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes["right"] + outcomes["quiet"] >= least
    assert outcomes["wrong"] + outcomes["false alarm"] <= (0 if suite.name == "controls" else 2)
