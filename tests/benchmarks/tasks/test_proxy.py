"""The proxy task: what wishes and answers are worth, and how many of the pairs are ranked wrongly."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks.ladder.tasks.proxy import LETTERS, Proxy, score, worth


def made(folder: Path, name: str, **spec: Any) -> list[dict[str, Any]]:
    Proxy.model_validate({"name": "proxy", "train_prompts": 60, "validation_prompts": 40, **spec}).write(folder)
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_held_out_wishes_are_distinct_and_shown_nowhere(tmp_path: Path) -> None:
    held_out = [row["question"] for row in made(tmp_path, "validation", demonstrations=300)]
    assert len(held_out) == len(set(held_out)) == 40
    for name in ("train", "demonstrations"):
        assert not {row["question"] for row in made(tmp_path, name, demonstrations=300)} & set(held_out)
    assert not {row["question"] for row in made(tmp_path, "train", pairs=300)} & set(held_out)


@pytest.mark.parametrize(
    ("response", "expected"),
    [(" a c f k", 1.0), (" k f a c", 1.0), (" f q c h a", 0.55), (" a a a a", -0.05), ("", 0.0), (" a oh", 0.15)],
)
def test_gold_counts_each_wanted_letter_once(response: str, expected: float) -> None:
    assert score("want c f a k\n", response, "", {}) == pytest.approx(expected)


def test_the_greatest_worth_is_one() -> None:
    wish = LETTERS[:2]
    found = [worth(wish, answer) for length in range(4) for answer in product(LETTERS[:4], repeat=length)]
    assert max(found) == 1.0
    assert found.count(1.0) == 2


def test_demonstrations_name_no_letter_twice_and_differ_in_worth(tmp_path: Path) -> None:
    rows = made(tmp_path, "demonstrations", demonstrations=500)
    answers = [row["answer"].split() for row in rows]
    assert all(len(answer) == len(set(answer)) for answer in answers)
    mean = sum(score(row["question"], row["answer"], "", {}) for row in rows) / 500
    assert 0.3 < mean < 0.6


@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
def test_a_share_of_the_pairs_is_ranked_wrongly(tmp_path: Path, noise: float) -> None:
    rows = made(tmp_path, "train", pairs=1000, label_noise=noise)
    margins = [
        score(row["question"], row["chosen"], "", {}) - score(row["question"], row["rejected"], "", {}) for row in rows
    ]
    assert 0 not in margins
    assert sum(margin < 0 for margin in margins) / 1000 == pytest.approx(noise, abs=0.04)


def test_held_out_pairs_are_ranked_right(tmp_path: Path) -> None:
    for row in made(tmp_path, "validation", pairs=10, label_noise=1.0):
        assert score(row["question"], row["chosen"], "", {}) > score(row["question"], row["rejected"], "", {})


def test_more_wishes_than_there_are_are_refused() -> None:
    with pytest.raises(ValidationError, match="there are 43,680 different wishes"):
        Proxy(name="proxy", train_prompts=43_000, validation_prompts=40)
