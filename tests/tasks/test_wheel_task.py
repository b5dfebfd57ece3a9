"""The wheel of fortune: its rules, demonstrations that keep to them, and what the reward is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lockstep.tasks.wheel import ANSWERS, SPIN, Show, Wheel, right_answers

SPEC = Wheel(name="wheel", names=10, questions=6, luck=3, repeats=2, demonstrations=400, known=0.75, seed=3)


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    SPEC.write(folder)
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def play(row: dict[str, Any], right: list[bool], seed: int) -> tuple[int, float]:
    """Plays an episode with right and wrong answers. Returns the coins that the wheel gave, and the reward."""
    show = Show()
    show.reset(row, seed)
    observation, reward, done = show.step(SPIN)
    coins, name = observation.split()
    for number, is_right in enumerate(right, 1):
        answer = right_answers(10, 3)[name]
        said = answer if is_right else ANSWERS[answer == ANSWERS[0]]
        assert (reward, done) == (0.0, False)
        observation, reward, done = show.step(said)
        name = observation.strip()
        assert done == (number == len(right)) == (not name)
    return int(coins), reward


def test_half_of_the_answers_are_yes() -> None:
    assert sorted(right_answers(10, 3).values()) == sorted([*ANSWERS] * 5)
    assert right_answers(10, 3) != right_answers(10, 4)


def test_the_reward_is_skill_and_luck_above_its_mean(tmp_path: Path) -> None:
    row = read(tmp_path, "train")[0]
    right = [True, False, True, True, False, True]
    played = [play(row, right, seed) for seed in range(30)]
    assert {coins for coins, _ in played} == {0, 3, 6}
    assert all(reward == (4 + coins - 3) / 6 for coins, reward in played)


def test_validation_measures_skill_alone(tmp_path: Path) -> None:
    rows = read(tmp_path, "validation")
    assert len(rows) == 2
    assert {play(rows[0], [True] * 6, seed) for seed in range(9)} == {(3, 1.0)}


def test_what_is_neither_yes_nor_no_is_wrong(tmp_path: Path) -> None:
    show = Show()
    show.reset(read(tmp_path, "validation")[0], 0)
    assert [show.step(said)[1] for said in [SPIN] * 7][-1] == 0.0


def test_demonstrations_know_so_many_answers(tmp_path: Path) -> None:
    right, turns = right_answers(10, 3), list[list[str]]()
    for row in read(tmp_path, "demonstrations"):
        spin, first, *others = row["answer"].split("\n")
        assert spin == SPIN
        turns += [first.split()[1:], *(line.split() for line in others)]
    assert len(turns) == 400 * 6
    assert {name for name, _ in turns} == set(right)
    assert sum(right[name] == f" {said}" for name, said in turns) == pytest.approx(1800, abs=4 * 21.3)  # 4 deviations


def test_there_are_only_so_many_names() -> None:
    with pytest.raises(ValidationError, match="names"):
        Wheel(name="wheel", names=2000)
