"""The ladder: its statistics, its results by digests, its rungs' recipes, and one rung trained for
real.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ladder import results
from benchmarks.ladder.results import Key, Result, read_results
from benchmarks.ladder.rung import ASSETS, Claim, Rung, list_rungs, open_rung
from benchmarks.ladder.runs import Ladder
from benchmarks.ladder.statistics import band, difference, iqm
from benchmarks.ladder.tables import compare, judge, table, write_page


def result(arm: str, seed: int, end: float, curve: tuple[float, ...] = (0.0, 0.5, 1.0)) -> Result:
    steps = tuple(range(0, 10 * len(curve), 10))
    return Result(Key(arm, seed, "r"), steps, curve, end, 8, 4.0, "here")


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([1.0, 2.0, 3.0, 100.0], 2.5),
        ([5.0], 5.0),
        ([1.0, 3.0], 2.0),
        ([0.0, 1.0, 2.0, 3.0, 9.0], (0.75 + 2 + 2.25) / 2.5),
    ],
)
def test_the_interquartile_mean_cuts_a_quarter_on_either_side(
    values: list[float], middle: float
) -> None:
    assert iqm(np.array(values)) == pytest.approx(middle)


def test_the_band_holds_every_resample_of_two_seeds() -> None:
    ends = [float(iqm(np.array(pair))) for pair in product([0.2, 0.6], repeat=2)]
    found = band([0.2, 0.6])
    assert (found.low, found.middle, found.high) == pytest.approx((min(ends), 0.4, max(ends)))
    assert difference([0.5, 0.9], [0.4, 0.7]).low == pytest.approx(0.1)


def test_ladder_claim_holds_only_if_difference_band_is_above_zero() -> None:
    claim = Claim("good", "bad", "because it is")
    ends = {"good": (0.8, 0.9), "bad": (0.5, 0.7)}
    clear = [result(arm, seed, end) for arm in ends for seed, end in enumerate(ends[arm])]
    assert judge(claim, clear).startswith("holds")
    assert judge(claim, [*clear, result("good", 2, 0.5), result("bad", 2, 0.9)]).startswith(
        "not shown"
    )
    assert judge(claim, clear[:3]).startswith("not measured"), "one common seed is no comparison"
    turned = compare(replace(claim, better="bad", worse="good"), clear)
    assert turned is not None
    assert turned.high < 0


@pytest.mark.parametrize("name", list_rungs())
def test_every_ladder_arm_resolves_to_distinct_recipe(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ASSETS, "assets")  # nothing is read of them
    rung = open_rung(name)
    digests = {
        arm: rung.arms[arm].load(0).digest
        for arm in rung.arms
        if rung.arms[arm].module == "lockstep"
    }
    assert len(set(digests.values())) == len(digests), f"two arms are the same run: {digests}"
    assert rung.seeds >= 3
    assert name in table(rung)


def test_ladder_page_matches_stored_results(tmp_path: Path) -> None:
    page = Path("docs/ladder.md")
    copy = tmp_path / "ladder.md"
    copy.write_text(page.read_text())
    write_page(copy, [open_rung(name) for name in list_rungs()])
    assert copy.read_text() == page.read_text(), (
        "python -m benchmarks.ladder --show --page docs/ladder.md"
    )


@pytest.mark.full
def test_bandit_rung_ranks_grpo_above_dr_grpo_and_skips_finished_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    rung = open_rung("bandit")
    assert isinstance(rung, Rung)
    ladder = Ladder(tmp_path, jobs=1)
    ladder.run([rung], ["grpo", "dr_grpo"], [100])
    ends = {one.key.arm: one.end for one in read_results("bandit")}
    assert ends["grpo"] > ends["dr_grpo"] + 0.1
    written = (tmp_path / "results" / "bandit.jsonl").stat().st_mtime_ns
    ladder.run([rung], ["grpo", "dr_grpo"], [100])
    assert (tmp_path / "results" / "bandit.jsonl").stat().st_mtime_ns == written, (
        "what has been measured is kept"
    )


@pytest.mark.proof
@pytest.mark.parametrize("name", list_rungs())
def test_supported_ladder_claims_hold_after_retraining(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims of a rung that its results bear out, trained anew on three seeds."""
    rung = open_rung(name)
    held = [claim for claim in rung.claims if judge(claim, read_results(name)).startswith("holds")]
    if rung.missing or not held:
        pytest.skip(rung.missing or f"no claim of {name} has held on its seeds")
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    arms = {arm for claim in held for arm in (claim.better, claim.worse)}
    Ladder(tmp_path, jobs=2).run([rung], sorted(arms), [0, 1, 2])
    for claim in held:
        found = compare(claim, read_results(name))
        assert found is not None
        assert found.middle > 0, f"{claim.better} is not above {claim.worse}: {found}"
