"""A meta-judge's pairs wait until its comparisons of the iteration show skill."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.algorithms.self_rewarding.meta import MetaJudgeSkill
from lockstep.objectives.order_consistency import ComparisonCounts

READS, GUESSES, FIRST = (
    ComparisonCounts(20, 18, 20),
    ComparisonCounts(20, 10, 20),
    ComparisonCounts(20, 0, 40),
)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.mark.parametrize(
    ("found", "skilled"),
    [(READS, True), (GUESSES, False), (FIRST, False), (ComparisonCounts(), False)],
)
def test_meta_judge_has_skill_only_if_consistent_beyond_chance(
    notes: list[str], found: ComparisonCounts, skilled: bool
) -> None:
    assert MetaJudgeSkill(notes.append).add_comparisons(0, found) == skilled
    assert len(notes) == (not skilled and found.total > 0)


def test_skill_evidence_accumulates_within_one_iteration_only(notes: list[str]) -> None:
    skill, few = MetaJudgeSkill(notes.append), ComparisonCounts(4, 4, 4)
    assert [skill.add_comparisons(0, few) for _ in range(4)] == [False, False, True, True]
    assert skill.add_comparisons(1, few) is False  # another meta-judge
    told = skill.compute_metrics().floats()
    assert (told["consistent_by_chance"], told["luck"]) == (few.by_chance, few.luck_probability)
    assert "consistent_by_chance" not in MetaJudgeSkill(notes.append).compute_metrics()


def test_meta_judge_skill_evidence_is_restored_from_checkpoint(
    notes: list[str], tmp_path: Path
) -> None:
    skill, few = MetaJudgeSkill(notes.append), ComparisonCounts(4, 4, 4)
    skill.add_comparisons(2, few)
    skill.add_comparisons(2, few)
    skill.save(tmp_path / "meta_judge")
    again = MetaJudgeSkill(notes.append)
    again.load(tmp_path / "meta_judge")
    assert again.compute_metrics().floats() == skill.compute_metrics().floats()
    assert again.add_comparisons(2, few)
    assert len(notes) == 1  # at the iteration's first comparisons alone
    again.load(tmp_path / "none")
    assert again.add_comparisons(2, few)
