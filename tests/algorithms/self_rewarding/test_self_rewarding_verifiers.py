"""Self-rewarding training in which programs score some of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from self_rewarding_runs import Run, steps
from tiny_recipe import SELF_REWARDING

from benchmarks.ladder.tasks.letters import Letters, demonstrations
from lockstep.config.loading import load
from lockstep.report.log import read_metrics
from lockstep.rewards.base import RewardError
from lockstep.run.train import train

VERIFIERS = """
def silent(prompt, response, answer, row):
    return None


def beyond(prompt, response, answer, row):
    return 3.0
"""
KINDS: list[dict[str, Any]] = [
    {"kind": "judge"},
    {"kind": "instructions", "asked": [{"id": "words", "at_least": 8}, {"id": "words", "at_least": 20}]},
    {"kind": "python"},
    {"kind": "judge"},
]
VERIFIER = "verifier={type: by_row, verifier: kind, instructions: {field: asked}, function: 'verifiers.py:silent'}"
FEW = ("data.bad_rows=skip", "self_rewarding.global_batch_size=4")


@pytest.fixture
def learn(in_tmp: Path) -> Run:
    """Runs the small recipe on rows that name their verifiers; returns the rows of metrics.jsonl."""
    task = Letters(name="letters", train_prompts=1, validation_prompts=1, demonstrations=16)
    rows = enumerate(demonstrations(task, set()))
    Path("rows.jsonl").write_text("".join(json.dumps(row | KINDS[i % 4]) + "\n" for i, row in rows))
    Path("verifiers.py").write_text(VERIFIERS)
    recipe = SELF_REWARDING | {
        "data": {"train": "rows.jsonl", "shuffle": False, "prompt": "{question}\n", "max_prompt_tokens": 64}
    }
    validation = {"validation_reward": None, "validation_sampling": None}
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe | validation))
    return lambda *overrides: read_metrics(train(load("tiny.yaml", [VERIFIER, *overrides])))


def samples() -> list[dict[str, Any]]:
    """Of each step's eight rows, which name the judge, instructions, a function, the judge, and so on."""
    return [json.loads(line) for line in Path("run/samples.jsonl").read_text().splitlines()]


def known(rows: list[dict[str, Any]]) -> list[float]:
    return [score for row in rows for score in row["scores"] if score is not None]


def test_rows_are_scored_by_whom_they_name(learn: Run) -> None:
    [row] = steps(learn("run.max_steps=1"))
    logged = samples()
    assert [one["scored_by"] for one in logged] == ["judge", "verifier", "verifier", "judge"] * 2
    judged, instructed = [*logged[::4], *logged[3::4]], logged[1::4]
    assert {0.0, 2.5} <= set(known(instructed)) <= {0.0, 2.5, 5.0}
    pairs = [one for one in logged if one["status"] == "ok"]
    assert {one["scored_by"] for one in pairs} == {"judge", "verifier"}
    for one in pairs:
        assert len(one["chosen_judgements"]) == (8 if one["scored_by"] == "judge" else 0)
    assert row["train/verified"] == 0.5
    assert row["train/judged_rewards"] == pytest.approx(sum(known(judged)) / len(known(judged)))
    assert row["train/verified_rewards"] == pytest.approx(sum(known(instructed)) / 10)
    everything = known(logged)
    assert row["train/generated_rewards"] == pytest.approx(sum(everything) / len(everything))
    replies = row["judge/no_verdict"] * 4 * 5 * 8  # of the judge's rows alone
    assert replies == pytest.approx(sum(value for name, value in row.items() if name.startswith("judge/no_verdict_")))


def test_a_verifier_that_cannot_say_scores_nothing(learn: Run) -> None:
    [row] = steps(learn("run.max_steps=1"))
    for one in samples()[2::4]:
        assert (one["status"], known([one])) == ("unscored", [])
    assert row["train/verifier_no_verdict"] == 2 * 5
    assert row["train/pairs/unscored"] >= 2 / 8


def test_rewards_are_laid_over_the_judges_scale(learn: Run) -> None:
    learn("run.max_steps=1", "judge.judge_score_low=-1", "judge.judge_score_high=7")
    assert {-1.0, 3.0} <= set(known(samples()[1::4])) <= {-1.0, 3.0, 7.0}


def test_held_out_answers_are_compared_with_right_ones_though_no_training_row_has_one(learn: Run) -> None:
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    Path("held_out.jsonl").write_text("".join(json.dumps({**row, "answer": "7"}) + "\n" for row in rows))
    Path("rows.jsonl").write_text("".join(json.dumps({"question": row["question"]}) + "\n" for row in rows))
    right = ("data.validation=held_out.jsonl", "validation_reward.type=math", "validation_sampling.max_tokens=8")
    values = learn("verifier=null", *right, *FEW, "run.max_steps=1")
    assert [row["validation/accuracy"] for row in values if "validation/accuracy" in row] == [0.0, 0.0]


def test_rewards_beyond_the_scale_are_refused(learn: Run) -> None:
    with pytest.raises(RewardError, match=r"rows.jsonl:3: its verifier gives 3, but beside a judge rewards go from 0"):
        learn(VERIFIER.replace("silent", "beyond"))
