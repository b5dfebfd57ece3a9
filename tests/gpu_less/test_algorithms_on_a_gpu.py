"""Every algorithm's steps, refits and evaluation on a GPU that is not there: no operation mixes
devices.

How often it is waited for is bounded where learners, not the sampler, are at work.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pretend_gpu import Record, Verb, pretend_gpu
from tiny_recipe import DPO, GRPO, RECIPE, REWARD_MODEL, REWARDS, SELF_REWARDING
from training import train_rows

PPO = RECIPE | {"ppo": RECIPE["ppo"] | {"kl": {"coef": 0.1}}}
SFT = {name: RECIPE[name] for name in ("model", "learner")} | {
    "algorithm": "sft",
    "data": {**RECIPE["data"], "completion": "{answer}"},
    "sft": {"global_batch_size": 16, "max_tokens": 96},
    "optimizer": {"lr": 1.0e-3},
    "run": {"max_steps": 2, "folder": "teacher"},
}
DISTILL = {
    **{
        name: RECIPE[name] for name in ("data", "learner", "sampling", "validation_sampling", "run")
    },
    "algorithm": "distill",
    "model": {"path": "teacher/initial"},
    "teacher": {"path": "teacher"},
    "validation_reward": {"type": "python", "function": "rewards.py:parity"},
    "distill": {"num_prompts_per_step": 8, "num_generations": 2, "global_batch_size": 8},
    "optimizer": {"lr": 1.0e-3},
}

Learn = Callable[[dict[str, Any]], tuple[list[dict[str, Any]], Record]]


@pytest.fixture
def learn(in_tmp: Path) -> Learn:
    """Runs a recipe on a GPU in an empty folder; returns the rows of metrics.jsonl, and what the
    GPU was asked.
    """
    (in_tmp / "rewards.py").write_text(REWARDS)

    def go(recipe: dict[str, Any]) -> tuple[list[dict[str, Any]], Record]:
        (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(recipe))
        with pretend_gpu() as record:
            return train_rows("tiny.yaml", "learner.device=cuda"), record

    return go


def assert_bounds(record: Record) -> None:
    """Nothing is waited for while a pass is made; test_syncs.py counts the rest, verb by verb."""
    learning: tuple[Verb, ...] = ("passes", "update", "logprobs", "values", "topk")
    assert record.count("copy", "passes"), "no pass was made"
    assert not record.count("sync", "passes"), record.lines("passes")
    assert not record.count("slow copy", *learning), record.lines(*learning)


@pytest.mark.parametrize(
    "recipe", [GRPO, DPO, REWARD_MODEL], ids=lambda recipe: recipe["algorithm"]
)
def test_algorithm_trains_on_gpu_without_waiting_in_passes(
    learn: Learn, recipe: dict[str, Any]
) -> None:
    rows, record = learn(recipe)
    assert rows
    assert_bounds(record)


def test_ppo_trains_on_gpu_without_waiting_and_offloading_does_not_change_metrics(
    learn: Learn,
) -> None:
    """Policy and sampler share weights here, so that moments, critic and reference leave."""
    runs = dict[bool, tuple[list[dict[str, Any]], Record]]()
    for offload in (True, False):
        run = {**PPO["run"], "folder": f"run {offload}"}
        runs[offload] = learn({**PPO, "run": run, "cluster": {"offload_idle": offload}})
        assert_bounds(runs[offload][1])
    (left, record), (stayed, still) = runs[True], runs[False]
    assert left == stayed
    assert record.count("copy back") > 100
    assert not still.count("copy back")
    assert record.count("sync") == still.count("sync"), record.lines()


def test_sft_and_distillation_train_on_gpu_without_waiting_in_passes(learn: Learn) -> None:
    for recipe in (SFT, DISTILL):
        rows, record = learn(recipe)
        assert rows
        assert_bounds(record)


@pytest.mark.full
def test_self_rewarding_trains_on_gpu_without_waiting_in_passes(learn: Learn) -> None:
    rows, record = learn(SELF_REWARDING | {"run": SELF_REWARDING["run"] | {"max_steps": 2}})
    assert rows
    assert_bounds(record)
