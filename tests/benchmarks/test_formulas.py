"""Lockstep's formulas equal the papers' equations in float64, rollouts tell formulas apart, and the page is true."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from benchmarks.formulas import ours, tables
from benchmarks.formulas.__main__ import lacks
from benchmarks.formulas.cases import Case, Outcome, judge
from benchmarks.formulas.catalog import FORMULAS
from benchmarks.formulas.references import policy_loss
from benchmarks.formulas.rollouts import Answer, Rollouts, draw_rollouts
from benchmarks.harness import RESULTS

ROOT = Path(__file__).parents[2]
DIFFERENT = {"grpo": "convention"}
"""What the page says of Lockstep; all else equals the paper."""

SMOOTH = ("ppo_tokens", "dual_clip", "gspo", "tis_sequence", "k3", "value_loss", "entropy", "dpo", "ipo")
"""Formulas without a stopped gradient."""


@pytest.fixture(scope="module")
def rollouts() -> Rollouts:
    return draw_rollouts()


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    return json.loads((RESULTS / "formulas.json").read_text())


def outcomes(saved: dict[str, Any]) -> list[Outcome]:
    return [Outcome(**row) for row in saved["rows"]]


@pytest.mark.parametrize("case", ours.cases(), ids=lambda case: case.formula)
def test_a_formula_equals_the_paper(case: Case, rollouts: Rollouts) -> None:
    outcome = judge("lockstep", case, FORMULAS[case.formula].reference, rollouts)
    assert outcome.verdict == DIFFERENT.get(case.formula, "equal"), outcome


def test_every_formula_is_compared() -> None:
    assert [case.formula for case in ours.cases()] == list(FORMULAS)


def test_a_difference_that_its_reason_does_not_explain_is_seen(rollouts: Rollouts) -> None:
    def halved(given: Rollouts) -> Answer:
        answer = policy_loss(given)
        return Answer(0.5 * answer.known_value, answer.known_gradient)

    reference = FORMULAS["ppo_tokens"].reference
    wrong = Case("ppo_tokens", halved, "x.py:1", "", "convention", "it says", FORMULAS["clip_higher"].reference)
    assert judge("x", wrong, reference, rollouts).verdict == "unexplained"
    assert judge("x", replace(wrong, instead=halved), reference, rollouts).verdict == "convention"


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_the_references_are_slopes_of_their_values(name: str, rollouts: Rollouts) -> None:
    batch, reference, step = rollouts.double(), FORMULAS[name].reference, 1e-6
    by = {"value_loss": "value", "entropy": "logits"}.get(name, "logprob")
    column: Tensor = getattr(batch, by)
    gradient = reference(batch).known_gradient
    for place in gradient.abs().flatten().topk(3).indices.tolist():
        moved = step * one_hot(torch.tensor(place), column.numel()).double().view_as(column)
        up, down = (reference(replace(batch, **{by: column + sign * moved})).known_value for sign in (1, -1))
        assert float((up - down) / (2 * step)) == pytest.approx(float(gradient.flatten()[place]), rel=1e-5)


def test_rollouts_tell_formulas_apart(rollouts: Rollouts) -> None:
    answers = {name: formula.reference(rollouts) for name, formula in FORMULAS.items()}
    for one, other in combinations(answers, 2):
        pairs = zip(vars(answers[one]).values(), vars(answers[other]).values(), strict=True)
        distances = [_distance(x, y) for x, y in pairs]
        assert max(distances) > 1e-3, f"{one} and {other} are alike on these rollouts"


def _distance(x: Tensor | None, y: Tensor | None) -> float:
    if x is None or y is None:
        return 0.0 if x is y else math.inf
    return float((x - y).abs().max() / y.abs().max()) if x.shape == y.shape else math.inf


def test_rollouts_have_what_makes_formulas_differ(rollouts: Rollouts) -> None:
    assert sum(len(part.lengths) for part in rollouts.micro_batches()) == rollouts.num_rows
    assert len({int(part.num_tokens) for part in rollouts.micro_batches()}) == 2
    assert int((~rollouts.mask).sum()) > 0, "a tool's tokens"
    assert int(rollouts.truncated.sum()) == 1
    assert rollouts.score.view(-1, 4).std(-1).min() == 0, "a group with equal rewards"


def test_the_page_shows_the_results(saved: dict[str, Any]) -> None:
    page, rows = (ROOT / "docs/formulas.md").read_text(), outcomes(saved)
    assert tables.matrix(rows) in page
    assert tables.differences(rows) in page
    assert saved["environment"] in page
    assert saved["commits"] == {name: peer.commit for name, peer in tables.PEERS.items()}


def test_a_library_has_a_formula_or_a_reason(saved: dict[str, Any]) -> None:
    rows = outcomes(saved)
    assert not saved["missing"]
    for library in tables.PEERS:
        compared = {row.formula for row in rows if row.library == library}
        assert compared | lacks(library).keys() == FORMULAS.keys(), library
        assert not compared & lacks(library).keys(), library
        assert saved["lacks"][library] == lacks(library)
    assert {row.verdict for row in rows} == {"equal", "convention", "substance"}


STANDS_ALONE = """
import sys
from pathlib import Path
from benchmarks.formulas.loading import Files

root = Path(sys.argv[1])
files = Files(root, {"theirs.maths": "theirs/maths.py"}, ("theirs", "engine"))
maths = files.load("theirs.maths")
assert maths.double(3) == 6 and maths.Kept().value == 7 and files.at("theirs.maths", "Kept.twice").endswith(":15")
try:
    maths.use()
except TypeError:
    print("ended")
"""
MATHS = """
import engine.cluster
from engine import remote, Base
from theirs.other import settings

@remote
def double(x: Base["float"]) -> float:
    return 2 * x

@remote(gpus=1)
class Kept(Base):
    value = 7

    # a comment
    def twice(self):
        return double(self.value)

def use():
    return 1.0 * settings.scale
"""


def test_stand_ins_decorate_but_do_not_compute(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/maths.py").write_text(MATHS)
    (tmp_path / "theirs/__init__.py").write_text("raise RuntimeError('a package is not executed')")
    command = [sys.executable, "-c", STANDS_ALONE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "ended", done.stderr
