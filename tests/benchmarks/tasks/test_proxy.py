"""The proxy task: what wishes and answers are worth, and how many of the pairs are ranked wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ladder.tasks.proxy import Proxy, score


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


@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
def test_a_share_of_the_pairs_is_ranked_wrongly(tmp_path: Path, noise: float) -> None:
    rows = made(tmp_path, "train", pairs=1000, label_noise=noise)
    margins = [
        score(row["question"], row["chosen"], "", {}) - score(row["question"], row["rejected"], "", {}) for row in rows
    ]
    assert 0 not in margins
    assert sum(margin < 0 for margin in margins) / 1000 == pytest.approx(noise, abs=0.04)
