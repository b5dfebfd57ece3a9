"""The task of small decisions: its payoffs, and the greatest of them, against all answers that
there are.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from row_files import read_rows

from benchmarks.ladder.tasks.choices import ACTIONS, Choices, value


def rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """One row for each state."""
    task = Choices.model_validate({"name": "choices", "states": 4, "actions": 3, **options})
    files = task.write(folder)
    found = read_rows(files.train)
    assert len(found) == 1024
    return found[: task.states]


def values(row: dict[str, Any]) -> list[float]:
    """The value of every answer."""
    answers = product(ACTIONS[: row["actions"]], repeat=row["length"])
    return [value(row["question"], " ".join(answer), "", row) for answer in answers]


@pytest.mark.parametrize(("kind", "length"), [("bandit", 1), ("process", 4), ("lock", 3)])
def test_best_answer_of_choices_task_is_worth_one(tmp_path: Path, kind: str, length: int) -> None:
    options = {} if kind == "bandit" else {"length": length}
    for row in rows(tmp_path, kind=kind, **options):
        found = values(row)
        assert max(found) == pytest.approx(1.0)
        assert min(found) < max(found)
        assert found == values(row)


def test_invalid_answer_of_choices_task_is_worth_zero(tmp_path: Path) -> None:
    row = rows(tmp_path, kind="lock", length=2, seed=1)[0]
    right = max(
        (" ".join(pair) for pair in product("abc", repeat=2)),
        key=lambda pair: value("", pair, "", row),
    )
    first, second = right.split()
    assert [
        value("", said, "", row) for said in (first, "", f"{first} z", f"{first} d", f"ab {second}")
    ] == [0.0] * 5
    assert value("", f" {right} c", "", row) == value("", right, "", row) == 1


def test_process_reward_accumulates_over_valid_moves(tmp_path: Path) -> None:
    row = rows(tmp_path, kind="process", length=3)[0]
    for said in product("abc", repeat=3):
        begun = [value("", " ".join(said[:moves]), "", row) for moves in range(4)]
        assert (
            begun[0]
            == 0
            <= begun[1]
            <= begun[2]
            <= begun[3]
            == value("", " ".join([*said, "a"]), "", row)
        )
        assert value("", f"{said[0]} z {said[1]}", "", row) == begun[1]


def test_greedy_choice_is_suboptimal_in_process_task(tmp_path: Path) -> None:
    greedy = []
    for row in rows(tmp_path, kind="process", length=8, actions=5):
        said = ""
        for _ in range(8):
            said = max(
                (f"{said} {place}" for place in "abcde"), key=lambda one: value("", one, "", row)
            )
        greedy.append(value("", said, "", row))
    assert sum(greedy) / len(greedy) < 0.7
