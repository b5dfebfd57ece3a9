"""Rewards of runs: a sum with a curve for each part, and a judge whose replies are kept."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from judge_server import JudgeServer, serve_judge
from row_files import read_trained
from tiny_recipe import GRPO, RECIPE, REWARDS, SELF_REWARDING
from training import step_rows, train_rows

from lockstep.config.loading import load_recipe
from lockstep.inference.eval_recipe import eval_recipe
from lockstep.inference.evaluate import evaluate
from lockstep.run.dry_run.dry_run import dry_run


@pytest.fixture(autouse=True)
def files(in_tmp: Path) -> None:
    (in_tmp / "rewards.py").write_text(REWARDS)


def run(recipe: dict[str, Any], reward: dict[str, Any], *overrides: str) -> list[dict[str, Any]]:
    """Runs a small recipe with a reward; returns the rows of metrics.jsonl."""
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe | {"reward": reward}))
    return train_rows("tiny.yaml", *overrides)


def python(name: str, **options: Any) -> dict[str, Any]:
    return {"type": "python", "function": f"rewards.py:{name}", **options}


def test_sum_reward_logs_each_part_and_excludes_responses_without_verdict() -> None:
    parts = {"parity": python("parity", weight=0.5), "rare": python("often_none", weight=2.0)}
    rows = run(
        GRPO, {"type": "sum", "parts": parts}, "run.max_steps=1", "run.num_logged_samples=16"
    )
    [row] = step_rows(rows)
    samples = read_trained("run/samples.jsonl")
    scored = [sample for sample in samples if sample["score"] is not None]
    assert len(samples) == 16
    assert 0 < row["train/no_verdict"] == row["reward_no_verdict/rare"] == 16 - len(scored)
    assert row["reward_no_verdict/parity"] == 0
    assert row["reward/rare"] == 1.0
    for sample in scored:
        assert sample["score"] == pytest.approx(0.5 * sample["reward/parity"] + 2.0)
    assert row["reward/parity"] == pytest.approx(
        sum(sample["reward/parity"] for sample in samples) / 16
    )
    [held_out] = [row for row in rows if "validation/reward" in row][-1:]
    assert held_out["validation/reward/rare"] == held_out["validation/reward/rare_high"] == 1.0
    assert 0 < held_out["validation/reward/parity"] < 1
    folder = evaluate(
        eval_recipe(
            "run", "run/data/validation.jsonl", ["sampling=null", "data.max_validation_samples=4"]
        )
    )
    figures = json.loads((folder / "results.json").read_text())["settings"]["greedy"]["figures"]
    assert figures["reward/rare"]["value"] == 1.0
    assert figures["reward/parity"]["questions"] == 4, "also where another part has no verdict"


@pytest.fixture
def judging() -> Iterator[JudgeServer]:
    """A judge that never says the same twice, so that only what was kept can be had again."""
    numbers = itertools.count()

    def judge(question: str) -> tuple[int, str]:
        number = next(numbers)
        return 200, "no idea" if number % 7 == 3 else f"Score: {number % 5}.{number % 9}"

    with serve_judge(judge) as server:
        yield server


def test_resumed_run_reuses_saved_judge_replies_and_gives_identical_weights(
    judging: JudgeServer,
) -> None:
    judge = {
        "sampler": {"backend": "openai", "openai": {"base_url": judging.url, "model": judging.model}},
        "template": "{prompt}|{response}", "max_prompt_tokens": 64, "sampling": {"max_tokens": 8},
        "num_evals_to_average": 2,
    }  # fmt: skip
    reward = {"type": "judge", "judge": judge}
    rows = run(GRPO, reward, "run.max_steps=3", "run.save_every=1", "run.keep=9")
    steps = step_rows(rows)
    assert all(0 <= row["train/reward_min"] <= row["train/reward_max"] <= 1 for row in steps)
    assert any(row["judge/no_verdict_no_match"] for row in steps)
    weights, asked = Path("run/final/model.safetensors").read_bytes(), len(judging.bodies)
    for left in ("final", "checkpoints/step_000002", "checkpoints/step_000003"):
        shutil.rmtree(f"run/{left}")
    assert run(GRPO, reward, "run.max_steps=3", "run.save_every=1", "run.keep=9") == rows
    assert Path("run/final/model.safetensors").read_bytes() == weights
    assert len(judging.bodies) == asked, "nothing is asked twice"


def test_initial_model_as_judge_gives_equal_rewards_to_equal_responses() -> None:
    judge = {**SELF_REWARDING["judge"], "num_evals_to_average": 2}
    part = {"type": "judge", "judge": judge, "weight": 3.0}
    reward = {"type": "sum", "parts": {"judge": part, "parity": python("parity")}}
    Path("tiny.yaml").write_text(yaml.safe_dump(RECIPE | {"reward": reward}))
    report = dry_run(load_recipe("tiny.yaml"))
    assert "reward.parts.judge.judge  the initial model judges 2 times" in report
    rows = run(
        RECIPE, reward, "run.max_steps=1", "sampling.max_tokens=1", "run.num_logged_samples=16"
    )
    [row] = [row for row in rows if "reward/judge" in row]
    samples = read_trained("run/samples.jsonl")
    alike: dict[tuple[str, str], set[float | None]] = {}
    for sample in samples:
        alike.setdefault((sample["prompt"], sample["response"]), set()).add(sample["reward/judge"])
    assert len(alike) < len(samples)  # so that some are equal
    assert all(len(rewards) == 1 for rewards in alike.values())
    assert row["judge/judge/no_verdict"] < 1
