"""Walks through a marsh: their rows, held-out beginnings, and the reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.ladder.tasks.walk import Walk, draw_ways, find_dry, list_syllables, number_places, reward

SPEC = Walk(name="walk", places=20, validation_walks=8, moves=6, demonstrations=400, seed=3)


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    SPEC.write(folder)
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_walks_follow_the_ways_and_note_the_ground(tmp_path: Path) -> None:
    numbers, ways, dry = number_places(), draw_ways(20, 3), find_dry(20, 3)
    for row in read(tmp_path, "demonstrations"):
        place, words = numbers[row["question"].split()[-1]], row["answer"].split()
        for name, note in zip(words[::2], words[1::2], strict=True):
            assert numbers[name] in ways[place]
            place = numbers[name]
            assert note == ("dry" if place in dry else "wet")


def test_the_reward_is_the_share_of_dry_places() -> None:
    names, dry = list_syllables(), find_dry(20, 3)
    good, bad = names[min(dry)], names[min(set(range(20)) - dry)]
    row = {"places": 20, "moves": 6, "seed": 3}
    assert reward("", f" {good} dry" * 6, "", row) == 1.0
    assert reward("", f" {good} wet {bad} dry" * 3, "", row) == 0.5
    assert reward("", f" {good}" * 3, "", row) == 0.5
    assert reward("", f" {bad}" * 6 + f" {good}" * 6, "", row) == 0.0
