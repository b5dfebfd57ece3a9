"""The task of preferences with a known worth: labels, and the best policy against a search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from row_files import read_rows

from benchmarks.ladder.tasks.preferences import Preferences, Worth, distance

WORTH = Worth(prompts=4, letters=3, length=3, spread=1.5, seed=0)


def made(folder: Path, **spec: Any) -> list[dict[str, Any]]:
    own = {"name": "preferences", "prompts": 4, "letters": 3, "pairs": 2000, **spec}
    Preferences.model_validate(own).write(folder)
    return read_rows(folder / "train.jsonl")


def gap(row: dict[str, Any]) -> float:
    """What the chosen answer is truly worth more."""
    worth = WORTH.of[row["question"]]
    return worth[row["chosen"]] - worth[row["rejected"]]


def test_preference_labels_follow_bradley_terry_probabilities(tmp_path: Path) -> None:
    rows = made(tmp_path)
    expected = sum(1 / (1 + math.exp(-abs(gap(row)))) for row in rows) / len(rows)
    assert sum(gap(row) > 0 for row in rows) / len(rows) == pytest.approx(expected, abs=0.03)
    assert all(
        row["chosen"] != row["rejected"] and row["chosen_score"] > row["rejected_score"]
        for row in rows
    )
    noise = [row["chosen_score"] - row["rejected_score"] - gap(row) for row in rows]
    assert max(map(abs, noise)) > 1


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_optimal_policy_has_zero_distance_and_maximum_objective(beta: float) -> None:
    """π* ∝ π_ref·exp(u/β) has distance 0, and what it loses of E[u] − β·KL, another policy loses by
    β·distance.
    """
    worth = dict(list(WORTH.of["like 0"].items())[:4])
    reference = dict(zip(worth, (0.1, 0.2, 0.3, 0.3), strict=True))
    outside, floor = 1 - sum(reference.values()), min(worth.values())
    weights = {
        answer: share * math.exp(worth[answer] / beta) for answer, share in reference.items()
    }
    total = sum(weights.values()) + outside * math.exp(floor / beta)
    best = {answer: weight / total for answer, weight in weights.items()}
    assert distance(best, reference, worth, beta) == pytest.approx(0, abs=1e-9)

    def objective(policy: dict[str, float]) -> float:
        shares = [(policy[answer], reference[answer], worth[answer]) for answer in worth]
        shares.append((1 - sum(policy.values()), outside, floor))
        return sum(own * (value - beta * math.log(own / before)) for own, before, value in shares)

    for other in ((0.25, 0.25, 0.25, 0.2), (0.7, 0.1, 0.1, 0.05)):
        policy = dict(zip(worth, other, strict=True))
        lost = objective(best) - objective(policy)
        assert lost > 0
        assert distance(policy, reference, worth, beta) == pytest.approx(lost / beta)
