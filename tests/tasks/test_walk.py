"""Walks through a marsh: rows, held-out beginnings, and rewards beside what another program makes of the same walks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from pydantic import ValidationError

from lockstep.tasks.walk import Walk, draw_ways, name_places, share, spot_check

SPEC = Walk(name="walk", places=20, validation_walks=8, moves=6, checked=2, demonstrations=400, seed=3)
NAMES, WAYS = name_places(), draw_ways(20, 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("walks")
    SPEC.write(folder)
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.iterdir()}


def write_walk(row: dict[str, Any], choices: tuple[int, ...]) -> str:
    """A walk that goes one way or the other at each place; its notes are all wrong, which must not matter."""
    place, words = NAMES.index(row["question"].split()[-1]), list[str]()
    for choice in choices:
        place = WAYS[place][choice]
        words += [NAMES[place], "wet" if choice == 0 else "dry"]
    return " " + " ".join(words)


def test_names_of_places_differ() -> None:
    assert len(set(name_places())) == len(name_places()) >= 1000


def test_one_way_leads_to_a_dry_place_and_one_to_a_wet_one() -> None:
    dry, wet = {one for one, _ in WAYS}, {other for _, other in WAYS}
    assert not dry & wet
    assert dry | wet <= set(range(20))
    assert draw_ways(20, 4) != WAYS


def test_every_beginning_is_there_once_and_held_out_ones_are_not_learned(files: dict[str, list[dict[str, Any]]]) -> None:
    train, held_out, shown = (
        [row["question"] for row in files[name]] for name in ("train", "validation", "demonstrations")
    )
    expected = {f"walk from {NAMES[start]} over {NAMES[way]}" for start in range(20) for way in WAYS[start]}
    assert sorted([*train, *held_out]) == sorted(expected)
    assert len(held_out) == 8
    assert set(shown) == set(train)


def test_demonstrations_take_either_way_and_note_the_ground(files: dict[str, list[dict[str, Any]]]) -> None:
    right = 0
    for row in files["demonstrations"]:
        words = row["answer"].split()
        place = NAMES.index(row["question"].split()[-1])
        for name, note in itertools.batched(words, 2):
            choice = WAYS[place].index(NAMES.index(name))
            assert note == ("dry", "wet")[choice]
            place, right = NAMES.index(name), right + 1 - choice
        assert len(words) == 2 * (6 + 4)
    assert abs(right / 4000 - 0.5) < 0.03


def test_the_reward_is_the_share_of_dry_moves_and_at_most_1(files: dict[str, list[dict[str, Any]]]) -> None:
    row = files["train"][0]
    found = {choices: share("", write_walk(row, choices), "", row) for choices in itertools.product((0, 1), repeat=6)}
    assert found == {choices: choices.count(0) / 6 for choices in found}
    assert max(found.values()) == found[(0,) * 6] == 1.0


def test_a_walk_on_no_way_and_one_that_stops_earn_only_their_right_moves(files: dict[str, list[dict[str, Any]]]) -> None:
    row = files["train"][0]
    best = write_walk(row, (0,) * 6).split()
    assert share("", " ".join(best[:6]), "", row) == 0.5
    assert share("", " ".join([*best, *best]), "", row) == 1.0, "moves beyond those that count"
    assert share("", " ".join([*best[:4], "dry", *best[5:]]), "", row) == pytest.approx(2 / 6)
    away = next(place for place in range(20) if place not in WAYS[NAMES.index(best[2])])
    on = WAYS[away][0]
    walk = [*best[:4], NAMES[away], "dry", NAMES[on], "dry"]
    assert share("", " ".join(walk), "", row) == pytest.approx(3 / 6)


def test_a_spot_check_is_the_share_with_noise(files: dict[str, list[dict[str, Any]]]) -> None:
    row, walks = files["train"][0], list(itertools.product((0, 1), repeat=6))
    drawn = [spot_check("", write_walk(row, choices), "", row) for choices in walks]
    assert drawn == [spot_check("", write_walk(row, choices), "", row) for choices in walks]
    assert set(drawn) == {0.0, 0.5, 1.0}
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.1)
    assert drawn[0] == 1.0
    assert drawn[-1] == 0.0


@pytest.mark.parametrize(("options", "message"), [
    ({"places": 5000}, "a graph has 4 to"),
    ({"places": 8, "validation_walks": 16}, "walks begin in 16 ways"),
    ({"moves": 4, "checked": 5}, "checked is 5, but a walk has 4 moves"),
])  # fmt: skip
def test_options_that_cannot_be_met_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Walk(name="walk", **{"validation_walks": 2, **options})  # pyright: ignore[reportArgumentType]
