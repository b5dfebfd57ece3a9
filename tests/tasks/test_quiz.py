"""Quizzes for coins: the show's rules, demonstrations that keep to them, and what the reward is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lockstep.tasks.quiz import ANSWERS, Quiz, Show, list_names, right_answers

SPEC = Quiz(name="quiz", names=10, held_out=3, questions=6, repeats=2, demonstrations=400, seed=3)


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    SPEC.write(folder)
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def play(row: dict[str, Any], answers: list[str], seed: int = 0) -> tuple[str, float]:
    """Plays a quiz to its end. Returns its text and the rewards' sum."""
    show, text, total = Show(), "", 0.0
    show.reset(row, seed)
    for number, answer in enumerate(answers, 1):
        observation, reward, done = show.step(answer)
        text, total = text + answer + observation, total + reward
        assert done == (number == row["questions"])
    return text, total


def test_half_of_the_answers_are_yes() -> None:
    right = right_answers(10, 3)
    assert list(right) == list_names()[:10]
    assert sorted(right.values()) == sorted([*ANSWERS] * 5)
    assert right != right_answers(10, 4)


def test_a_right_answer_wins_a_coin_and_the_end_pays_the_share_of_all_coins(tmp_path: Path) -> None:
    row = read(tmp_path, "train")[0]
    right = right_answers(10, 3)
    show, coins = Show(), 6
    show.reset(row, seed=5)
    name = row["first"]
    for turn, is_right in enumerate([True, True, False, True, False]):
        answer = right[name] if is_right else ANSWERS[right[name] == ANSWERS[0]]
        coins += 1 if is_right else -1
        observation, reward, done = show.step(answer)
        shown, name = observation.split()
        assert (int(shown), reward, done) == (coins, 0.0, False), turn
    assert show.step(right[name]) == ("", 8 / 12, True)


def test_what_is_neither_yes_nor_no_is_wrong(tmp_path: Path) -> None:
    row = read(tmp_path, "train")[0]
    assert play(row, [" ka"] * 6)[1] == 0.0


def test_each_row_has_a_best_play(tmp_path: Path) -> None:
    for row in read(tmp_path, "train"):
        answers = [f" {line.split()[-1]}" for line in row["answer"].split("\n")]
        assert play(row, answers) == (row["answer"], 1.0)


def test_validation_begins_with_names_that_training_does_not(tmp_path: Path) -> None:
    assert [row["first"] for row in read(tmp_path, "validation")] == list_names()[:3] * 2
    for name in ("train", "demonstrations"):
        assert {row["first"] for row in read(tmp_path, name)} == {*list_names()[3:10]}


def test_demonstrations_tell_nothing_of_what_is_right(tmp_path: Path) -> None:
    shown = read(tmp_path, "demonstrations")
    right = right_answers(10, 3)
    asked = [(name, f" {said}") for row in shown for name, said in _pairs(row)]
    assert len(asked) == 400 * 6
    assert {name for name, _ in asked} == set(list_names()[:10])
    assert sum(right[name] == said for name, said in asked) == pytest.approx(1200, abs=4 * 24.5)  # 4 deviations


def test_a_quiz_asks_for_no_more_names_than_there_are() -> None:
    with pytest.raises(ValidationError, match="names is 2000"):
        Quiz(name="quiz", names=2000)
    with pytest.raises(ValidationError, match="leave one to train on"):
        Quiz(name="quiz", names=8)


def _pairs(row: dict[str, Any]) -> list[list[str]]:
    first, *others = row["answer"].split("\n")
    return [[row["first"], first.strip()], *(line.split()[1:] for line in others)]
