"""What self-rewarding tells of held-out prompts: a twin of each metric of training, and a table, at
each validation.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from row_files import read_rows
from self_rewarding_runs import Run
from tiny_recipe import SELF_REWARDING
from training import train_rows

OF_LEARNING = {"train/grad_norm", "train/lr", "train/iteration", "train/epoch"}
"""Metrics that tell of the update, or of where the run is; nothing held out has any."""


@pytest.fixture
def learn(in_tmp: Path) -> Run:
    """Runs the small recipe, validated at each step, with overrides; returns the rows of
    metrics.jsonl.
    """
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(SELF_REWARDING))
    return lambda *overrides: train_rows("tiny.yaml", "run.validate_every=1", *overrides)


def validated(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "val/pairs/ok" in row]


def tables(folder: str = "run") -> dict[int, list[dict[str, Any]]]:
    """Rows of held-out prompts with their pairs, by step."""
    rows = read_rows(Path(folder, "samples.jsonl"))
    pairs = [row for row in rows if row.get("held_out") and "status" in row]
    steps = dict.fromkeys(row["step"] for row in pairs)
    return {step: [row for row in pairs if row["step"] == step] for step in steps}


def test_held_out_metrics_equal_training_metrics_on_the_same_rows(learn: Run) -> None:
    """Before the first step, on the very rows of that step in their order, whose draws have the
    same keys.
    """
    learn("run.folder=made", "run.max_steps=1")
    rows = Path("made/data/train.jsonl").read_text().splitlines()[:8]
    Path("rows.jsonl").write_text("\n".join(rows) + "\n")
    own = [
        "data={task: null, train: rows.jsonl, validation: rows.jsonl, shuffle: false}",
        "run.max_steps=1",
    ]
    before, step, *_ = learn(*own, "model.scratch=null", "model.path=made/final")
    twins = {
        name: f"val/{name.removeprefix('train/')}"
        for name in step
        if name.startswith(("train/", "judge/"))
    }
    compared = {name: twin for name, twin in twins.items() if name not in OF_LEARNING}
    assert len(compared) > 30
    assert {name for name in before if name.startswith("val/")} == {
        *compared.values(),
        "val/acc_low",
        "val/acc_high",
    }
    for name, twin in compared.items():
        assert before[twin] == pytest.approx(step[name], rel=1e-5, abs=1e-6, nan_ok=True), name
    assert before["val/acc_low"] <= before["val/acc"] <= before["val/acc_high"]
    trained = read_rows("run/samples.jsonl")
    held_out, learned = (
        [row for row in trained if ("held_out" in row) == wanted] for wanted in (True, False)
    )
    first = [
        {name: value for name, value in row.items() if name not in ("step", "held_out")}
        for row in held_out[:8]
    ]
    assert first == [
        {name: value for name, value in row.items() if name != "step"} for row in learned
    ]


def test_held_out_answers_come_from_reference_and_pair_losses_from_policy(
    learn: Run,
) -> None:
    rows = validated(learn("optimizer.lr=0.01"))
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    scores, losses = (
        [row[f"val/{name}"] for row in rows] for name in ("generated_rewards", "preference_loss")
    )
    assert scores[0] == scores[1] == scores[2]  # by who acted in steps 1 and 2
    assert scores[3] == scores[4] != scores[2]  # by the policy after step 2
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert all(abs(loss - math.log(2)) > 1e-6 for loss in losses[1:])  # at an iteration's end, too
    told = tables()
    assert told[0] == [{**row, "step": 0} for row in told[2]]
    assert told[3] != [{**row, "step": 3} for row in told[2]]


@pytest.mark.full
def test_each_validation_logs_held_out_prompts_with_chosen_and_rejected_answers(learn: Run) -> None:
    learn("run.num_logged_samples=3", "run.max_steps=2")
    told = tables()
    assert list(told) == [0, 1, 2]
    assert all(
        [row["id"] for row in rows] == [f"validation.jsonl:{n}" for n in (1, 2, 3)]
        for rows in told.values()
    )
    pairs = [row for row in told[2] if row["status"] == "ok"]
    assert pairs
    for row in pairs:
        assert row["prompt"].startswith("start")
        assert row["chosen"] != row["rejected"]
        assert row["chosen_score"] > row["rejected_score"]
    learn("run.num_logged_samples=0", "run.max_steps=1", "run.folder=quiet")
    assert not tables("quiet")
