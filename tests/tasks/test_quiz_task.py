"""The quiz: its rules, what the reward is, that being cut off never pays, and demonstrations that
keep to the rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from row_files import read_rows

from lockstep.tasks.quiz import ANSWERS, LARGEST, READY, Quiz, Show, is_prime

SPEC = Quiz(name="quiz", questions=6, luck=3, demonstrations=400, seed=3)


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    SPEC.write(folder)
    return read_rows(folder / f"{name}.jsonl")


def play(row: dict[str, Any], right: list[bool], seed: int) -> tuple[int, list[int], float]:
    """Plays an episode with right and wrong answers.

    Returns the prize, the numbers asked, and the reward.
    """
    host, numbers = Show(), list[int]()
    host.reset(row, seed)
    said, reward, done = host.step(READY)
    prize, said = said.removeprefix("\n").split("\n")
    for is_right in right:
        assert (reward, done) == (0.0, False), "nothing is paid before the end"
        numbers.append(int(said))
        said, reward, done = host.step(ANSWERS[is_prime(numbers[-1]) != is_right])
    assert (said, done) == ("", True)
    return int(prize), numbers, reward


def test_quiz_reward_is_share_of_all_coins(tmp_path: Path) -> None:
    row = read(tmp_path, "train")[0]
    right = [True, False, True, True, False, True]
    played = [play(row, right, seed) for seed in range(30)]
    assert {prize for prize, _, _ in played} == {0, 3, 6}
    assert all(reward == (prize + 4) / 12 for prize, _, reward in played)
    assert all(len(set(numbers)) == 6 for _, numbers, _ in played)
    assert {play(row, [True] * 6, seed)[2] for seed in range(30)} == {0.5, SPEC.best_reward, 1.0}
    assert min(play(row, [False] * 6, seed)[2] for seed in range(30)) == Show.cut_off_reward


def test_validation_quizzes_have_every_prize_and_reward_only_right_answers(tmp_path: Path) -> None:
    played = [
        play(row, [True, False, True, True, True, True], 0) for row in read(tmp_path, "validation")
    ]
    assert sorted(prize for prize, _, _ in played) == [0] * 22 + [3] * 22 + [6] * 22
    assert {reward for _, _, reward in played} == {5 / 6}


def test_quiz_answer_other_than_yes_or_no_counts_as_wrong(tmp_path: Path) -> None:
    host = Show()
    host.reset(read(tmp_path, "validation")[0], 0)
    assert [host.step(said)[1] for said in [READY] * 7][-1] == 0.0


def test_quiz_demonstrations_answer_60_percent_of_turns_correctly(tmp_path: Path) -> None:
    turns = list[tuple[int, str]]()
    for row in read(tmp_path, "demonstrations"):
        ready, prize, *lines = row["answer"].split("\n")
        assert (ready, int(prize) in {0, 3, 6}) == (READY, True)
        turns += [(int(number), f" {said}") for number, said in map(str.split, lines)]
    assert len(turns) == 400 * 6
    assert {number for number, _ in turns} == set(range(1, LARGEST + 1, 2))
    right = sum((said == ANSWERS[0]) == is_prime(number) for number, said in turns)
    assert right == pytest.approx(1440, abs=4 * 24)  # 4 deviations
