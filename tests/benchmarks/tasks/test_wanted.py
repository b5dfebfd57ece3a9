"""The task of a wanted letter: judgments and comparisons that are known to be right are, and
shares are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from row_files import read_rows

from benchmarks.ladder.tasks.wanted import Wanted, score
from lockstep.judge.verdicts import ScoreParser, WinnerParser


def made(folder: Path, name: str, **spec: Any) -> list[dict[str, Any]]:
    Wanted.model_validate(
        {"name": "wanted", "train_prompts": 16, "validation_prompts": 8, **spec}
    ).write(folder)
    return read_rows(folder / name)


def mistakes(row: dict[str, Any], judgment: str) -> int:
    """Counts the verdicts that are wrong about the response."""
    wanted, said = row["prompt"].split()[1], judgment.split()
    assert said[::2] == row["response"].split()
    return sum(
        (letter == wanted) != (verdict == "yes")
        for letter, verdict in zip(said[::2], said[1::2], strict=True)
    )


def test_known_judgments_and_comparisons_are_correct(tmp_path: Path) -> None:
    scores = made(tmp_path, "judgments.jsonl", known=60)
    assert all(row["score"] == score(row["prompt"], row["response"], "", {}) for row in scores)
    assert len({row["score"] for row in scores}) == 6
    rows = made(tmp_path, "comparisons.jsonl", known=60)
    for row in rows:
        one, other = mistakes(row, row["judgement_a"]), mistakes(row, row["judgement_b"])
        assert one != other
        assert row["winner"] == ("A" if one < other else "B")
    assert 20 < sum(row["winner"] == "A" for row in rows) < 40


def test_wanted_demonstrations_follow_requested_shares_and_parse(tmp_path: Path) -> None:
    rows = made(
        tmp_path, "demonstrations.jsonl", demonstrations=2000, judge_share=0.3, compare_share=0.5
    )
    kinds = [row["question"].split()[0] for row in rows]
    assert abs(kinds.count("compare") / 2000 - 0.5) < 0.04
    assert abs(kinds.count("judge") / 2000 - 0.3) < 0.04
    judge, meta = ScoreParser(0, 5, "score", decimals=False), WinnerParser("winner")
    for kind, row in zip(kinds, rows, strict=True):
        if kind == "judge":
            assert judge(row["answer"]).value == row["answer"].split().count("yes")
        elif kind == "compare":
            assert meta(row["answer"]).value == row["answer"].split()[-1]
            marks = row["answer"].split()[2:15:3]
            assert marks.count(row["answer"].split()[-1]) == max(marks.count("A"), marks.count("B"))
    answers = [
        score(row["question"], row["answer"], "", {})
        for row in rows
        if row["question"].startswith("want")
    ]
    assert sum(answers) / len(answers) == pytest.approx(5 / 4, abs=0.2)
