"""The letters task: what a program says of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from row_files import read_rows

from benchmarks.ladder.tasks.letters import Letters, score


def made(folder: Path, name: str, **spec: Any) -> list[dict[str, Any]]:
    Letters(name="letters", train_prompts=50, validation_prompts=20, **spec).write(folder)
    return read_rows(folder / name)


def worth(row: dict[str, Any]) -> float:
    return score(row["prompt"], row["response"], "", {})


def verdicts(judgment: str) -> list[bool]:
    return [word == "yes" for word in judgment.split()[1::2]]


def kept(row: dict[str, Any]) -> list[bool]:
    """Which orders the response keeps, one at a time, by what its worth would lose."""
    first, last, one, other, none = row["prompt"].split()[1::2]
    said = row["response"].split()
    return [said[0] == first, said[-1] == last, one in said, other in said, none not in said]


def test_known_judgments_match_scores_of_held_out_prompts(tmp_path: Path) -> None:
    rows = made(tmp_path, "judgments.jsonl", known=60)
    held_out = {
        json.loads(line)["question"]
        for line in (tmp_path / "validation.jsonl").read_text().splitlines()
    }
    assert len(rows) == 60
    assert {row["prompt"] for row in rows} == held_out
    assert all(row["score"] == worth(row) for row in rows)
    assert len({row["score"] for row in rows}) == 6


def test_winner_of_known_comparison_has_fewer_wrong_verdicts(tmp_path: Path) -> None:
    rows = made(tmp_path, "comparisons.jsonl", known=60)
    for row in rows:
        wrong = {
            name: sum(
                own != said
                for own, said in zip(
                    kept(row), verdicts(row[f"judgement_{name.lower()}"]), strict=True
                )
            )
            for name in "AB"
        }
        assert wrong[row["winner"]] == min(wrong.values()) < max(wrong.values())
    assert {row["winner"] for row in rows} == {"A", "B"}


def test_letters_demonstrations_follow_requested_shares(tmp_path: Path) -> None:
    rows = made(
        tmp_path, "demonstrations.jsonl", demonstrations=2000, judge_share=0.3, compare_share=0.5
    )
    kinds = [row["question"].split()[0] for row in rows]
    assert abs(kinds.count("compare") / 2000 - 0.5) < 0.04
    assert abs(kinds.count("judge") / 2000 - 0.3) < 0.04
    for row in (row for row in rows if row["question"].startswith("compare")):
        marks, winner = row["answer"].split()[2:15:3], row["answer"].split()[-1]
        assert marks.count(winner) > marks.count("B" if winner == "A" else "A")
