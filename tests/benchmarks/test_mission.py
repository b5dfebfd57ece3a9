"""The page of `make mission` shows what was measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.mission import ppo
from benchmarks.mission.__main__ import FILE, PAGE, _child_cpu_seconds, _describe_time, write
from benchmarks.mission.opposites import HELD_OUT, TRAINED, name_opposite


def test_page_and_pictures_are_those_of_the_results() -> None:
    files = write(json.loads(FILE.read_text()))
    assert PAGE in files
    for file, text in files.items():
        assert file.read_text(encoding="utf-8") == text, f"{file} is out of date: python -m benchmarks.mission --page"


def test_cpu_minutes_are_those_of_programs_that_ended() -> None:
    before = _child_cpu_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True)
    assert _child_cpu_seconds() - before >= 0.2
    assert _describe_time({"minutes": 17.2}) == "17 minutes"
    assert _describe_time({"minutes": 17.2, "cpu_minutes": 30.6}) == "17 minutes, 31 CPU minutes"


def test_curves_that_differ_do_not_hold() -> None:
    one = {"train/reward": [[step, 0.5] for step in range(4)]}
    other = {"train/reward": [[step, 0.5 + 0.21 * (step % 2)] for step in range(4)]}
    assert ppo._verdict("equal", one, one).startswith("- **Holds**: equal. Sampled rewards are equal in 4 of 4 steps")
    assert ppo._verdict("equal", one, other).startswith(
        "- **Does not hold**: equal. Sampled rewards are equal in 2 of 4"
    )


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("Cold.", 1.0),
        ("The opposite of hot is cold.", 1.0),
        ("hot", 0.0),
        ("coldness", 0.0),
        ("It may be cold, or warm, or mild, or freezing.", 0.0),
    ],
)
def test_a_short_response_with_the_right_word_is_rewarded(response: str, reward: float) -> None:
    assert name_opposite("", response, "cold", {}) == reward


def test_held_out_words_are_not_trained_on() -> None:
    assert not {*HELD_OUT, *HELD_OUT.values()} & {*TRAINED, *TRAINED.values()}
