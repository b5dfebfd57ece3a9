"""Runs with an environment, as their users start them: PPO and GRPO learn from episodes, and faults
cost episodes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from killing import started, wait_for
from row_files import read_trained
from tiny_recipe import RECIPE, REWARDS
from training import train_rows

Run = Callable[..., list[dict[str, Any]]]

WORLDS = '''
class Even:
    """A turn is worth its share of even digits; says "3" to each, and ends after three."""
    def reset(self, row, seed):
        self.turns = 0
    def step(self, response):
        self.turns += 1
        return "3\\n", sum(c in "02468" for c in response) / max(1, len(response)) / 3, self.turns == 3


class Split(Even):
    """The same digits, rewarded and fined by two names that add up to one half."""
    def step(self, response):
        said, reward, done = super().step(response)
        return said, {"even": reward, "odd": 1 / 6 - reward}, done


class Moody(Even):
    """Fails by its seed."""
    def reset(self, row, seed):
        super().reset(row, seed)
        if seed % 5 == 0:
            raise RuntimeError("not today")


class Asleep(Even):
    """Never answers."""
    def step(self, response):
        import pathlib, time
        pathlib.Path("asleep").touch()
        time.sleep(1000)
'''
STOPS = [*"0123456789+-=.", "\n"]
PPO = {name: value for name, value in RECIPE.items() if name != "reward"} | {
    "environment": {
        "class_name": "worlds.py:Even",
        "stop": STOPS,
        "max_tokens": 30,
        "pass_score": 0.1,
    },
    "sampling": {"max_tokens": 8},
    "validation_sampling": {"max_tokens": 8},
}
GRPO = {name: value for name, value in PPO.items() if name not in ("ppo", "critic")} | {
    "algorithm": "grpo",
    "grpo": {"num_prompts_per_step": 4, "num_generations": 4, "global_batch_size": 8},
}


@pytest.fixture
def run(in_tmp: Path) -> Run:
    """Runs one of two small recipes with overrides in an empty folder; returns the rows of
    metrics.jsonl.
    """
    (in_tmp / "ppo.yaml").write_text(yaml.safe_dump(PPO))
    (in_tmp / "grpo.yaml").write_text(yaml.safe_dump(GRPO))
    (in_tmp / "worlds.py").write_text(WORLDS)
    (in_tmp / "rewards.py").write_text(REWARDS)
    return lambda recipe, *overrides: train_rows(f"{recipe}.yaml", *overrides)


def steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "train/turns" in row]


@pytest.mark.parametrize("recipe", ["ppo", "grpo"])
def test_ppo_and_grpo_raise_environment_reward(run: Run, recipe: str) -> None:
    rows = steps(run(recipe, "run.max_steps=12", "policy.lr=0.02"))
    assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.05
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-4 for row in rows)
    assert all(1 < row["train/turns"] <= 3 and row["train/environment_faults"] == 0 for row in rows)


def test_observation_tokens_are_logged_but_masked_from_training(run: Run) -> None:
    run("grpo", "run.max_steps=1")
    shown = read_trained("run/samples.jsonl")
    played = [sample for sample in shown if 0 in sample["token"]["mask"]]
    assert played
    for sample in played:
        unseen = [
            text
            for text, mask in zip(sample["token"]["text"], sample["token"]["mask"], strict=True)
            if not mask
        ]
        assert set(unseen) == {"3", "\n"}
        assert sample["tokens"] == sum(sample["token"]["mask"])


def test_environment_faults_are_counted_and_named_and_run_continues(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = steps(run("ppo", "environment.class_name=worlds.py:Moody", "run.max_steps=3"))
    faults = sum(row["train/environment_faults"] for row in rows)
    assert 0 < faults < 48
    assert faults == sum(row["train/no_verdict"] for row in rows)
    said = capsys.readouterr().err
    assert "worlds.py:Moody raised RuntimeError: not today (worlds.py, line 23)" in said


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, pytest.param(1, marks=pytest.mark.proof)])
def test_interrupt_ends_run_while_environment_hangs(run: Run, in_tmp: Path, processes: int) -> None:
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(GRPO))
    hangs = ("environment.class_name=worlds.py:Asleep", "environment.timeout_s=900")
    with started("run", *hangs, f"environment.max_concurrency={processes}") as process:
        assert process.stderr is not None
        wait_for(Path("asleep").exists, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        told = process.stderr.read()
    assert told.endswith("interrupted; rerun the command to resume from the newest checkpoint\n")
