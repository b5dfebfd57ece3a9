"""The number game: the rules, demonstrations that keep to them, and the best play against brute force."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ladder.tasks.guess import Game, Guess, best_chance
from lockstep.config import TaskFiles

SPEC = Guess(name="guess", largest=31, turns=5, repeats=2, demonstrations=2000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TaskFiles:
    return SPEC.write(tmp_path_factory.mktemp("made"))


def rows(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    return [json.loads(line) for line in path.read_text().splitlines()]


def play(row: dict[str, Any], guesses: list[str]) -> tuple[str, float]:
    """Plays guesses until the game ends. Returns its text and the rewards' sum."""
    game, text, rewards = Game(), "", 0.0
    game.reset(row, seed=0)
    for guess in guesses:
        observation, reward, done = game.step(guess)
        text, rewards = text + guess + observation, rewards + reward
        if done:
            break
    return text, rewards


def test_the_game_answers_and_rewards_a_number_that_is_found() -> None:
    row = {"number": 20, "turns": 3}
    assert play(row, ["16?", "24?", "20?"]) == ("16? higher\n24? lower\n20?", 1.0)
    assert play(row, ["20?", "24?"]) == ("20?", 1.0)
    assert play(row, ["16?", "24?", "19?", "20?"]) == ("16? higher\n24? lower\n19?", 0.0)
    assert play(row, ["16?", "higher?", "20?"]) == ("16? higher\nhigher?", 0.0)


def test_demonstrations_keep_to_what_is_still_possible_and_are_what_the_game_would_say(files: TaskFiles) -> None:
    shown = rows(files.demonstrations)
    assert len(shown) == 2000
    found = 0
    for row in shown:
        low, high = 1, 31
        guesses = re.findall(r"\d+\?", row["answer"])
        for guess in (int(one[:-1]) for one in guesses):
            assert low <= guess <= high
            low, high = (guess + 1, high) if guess < row["number"] else (low, guess - 1)
        text, reward = play(row, guesses)
        assert text == row["answer"]
        found += reward == 1.0
    assert abs(found / 2000 - expect_random(31, 5)) < 0.03


def test_the_best_chance_is_that_of_brute_force() -> None:
    assert best_chance(31, 5) == 1.0
    for largest in range(1, 40):
        for turns in range(1, 6):
            assert best_chance(largest, turns) == pytest.approx(most_found(largest, turns) / largest)


@cache
def most_found(size: int, turns: int) -> int:
    """How many of `size` neighboring numbers the best tree of guesses finds, by trying every guess."""
    if size == 0 or turns == 0:
        return 0
    below_and_above = ((guess, size - 1 - guess) for guess in range(size))
    return 1 + max(most_found(below, turns - 1) + most_found(above, turns - 1) for below, above in below_and_above)


def expect_random(largest: int, turns: int) -> float:
    """The chance of finding the number by guesses that are uniform among the possible ones."""

    @cache
    def found(size: int, left: int) -> float:
        if size == 0 or left == 0:
            return 0.0
        return sum(1 + found(guess, left - 1) + found(size - 1 - guess, left - 1) for guess in range(size)) / size

    return found(largest, turns) / largest
