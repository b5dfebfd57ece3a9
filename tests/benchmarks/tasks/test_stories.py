"""The task of openings of stories: its rows and its reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.ladder.tasks.stories import NAMES, OPENINGS, Stories, happiness


def questions(path: Path) -> list[str]:
    return [json.loads(line)["question"] for line in path.read_text().splitlines()]


def test_held_out_openings_are_of_other_children(tmp_path: Path) -> None:
    files = Stories(name="stories", held_out_names=3).write(tmp_path)
    train, held_out = questions(files.train), questions(files.validation)
    assert len(set(train)) == len(train) == 5 * len(OPENINGS)
    assert len(set(held_out)) == len(held_out) == 3 * len(OPENINGS)
    assert not any(name in opening for name in NAMES[-3:] for opening in train)
    assert all(any(name in opening for name in NAMES[-3:]) for opening in held_out)


@pytest.mark.parametrize(
    ("response", "expected"),
    [("She was happy.", 0.5), ("Happy, HAPPY!", 1.0), ("a good friend to play with", 1.0), ("unhappy", 0.0), ("", 0.0)],
)
def test_two_happy_words_are_enough(response: str, expected: float) -> None:
    assert happiness("", response, "", {}) == expected
