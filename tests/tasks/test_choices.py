"""The task of small decisions: its payoffs, and the greatest of them, against all answers that there are."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from lockstep.tasks.choices import ACTIONS, Choices, poorer_value, value


def rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """One row for each state."""
    task = Choices.model_validate({"name": "choices", "states": 4, "actions": 3, **options})
    files = task.write(folder)
    found = [json.loads(line) for line in files.train.read_text().splitlines()]
    assert len(found) == task.train_rows
    return found[: task.states]


def values(row: dict[str, Any]) -> list[float]:
    """The value of every answer."""
    answers = product(ACTIONS[: row["actions"]], repeat=row["length"])
    return [value(row["question"], " ".join(answer), "", row) for answer in answers]


@pytest.mark.parametrize(("kind", "length"), [("bandit", 1), ("process", 4), ("lock", 3)])
def test_the_best_answer_is_worth_one(tmp_path: Path, kind: str, length: int) -> None:
    options = {} if kind == "bandit" else {"length": length}
    for row in rows(tmp_path, kind=kind, **options):
        found = values(row)
        assert max(found) == pytest.approx(1.0)
        assert min(found) < max(found)
        assert found == values(row)


def test_states_pay_differently(tmp_path: Path) -> None:
    assert len({tuple(values(row)) for row in rows(tmp_path, kind="bandit")}) == 4


def test_a_lock_opens_by_one_answer_and_its_trap_pays_less(tmp_path: Path) -> None:
    for row in rows(tmp_path, kind="lock", length=2, trap=0.25):
        assert sorted(values(row)) == [0.0] * 5 + [0.25] * 3 + [1.0]


def test_what_is_no_answer_is_worth_nothing(tmp_path: Path) -> None:
    row = rows(tmp_path, kind="process", length=2)[0]
    assert [value("", response, "", row) for response in ("a", "", "a z", "a d", "ab c")] == [0.0] * 5
    assert value("", " b a c", "", row) == value("", "b a", "", row) > 0


def test_every_second_state_is_poor(tmp_path: Path) -> None:
    rich, poor, *_ = rows(tmp_path, kind="bandit")
    assert poorer_value("", "a", "", rich) == value("", "a", "", rich)
    assert poorer_value("", "a", "", poor) == pytest.approx(0.1 * value("", "a", "", poor))
