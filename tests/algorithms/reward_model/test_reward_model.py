"""Reward models as their users train them: on pairs, written as sequence classifiers, and what they
say afterwards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pairs_runs import of_steps, scored
from row_files import read_rows
from tiny_recipe import RECIPE as PPO
from tiny_recipe import REWARD_MODEL, REWARDS
from training import train_rows
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

Run = Callable[..., list[dict[str, Any]]]


TINY_RECIPE = REWARD_MODEL


def test_reward_model_reaches_full_accuracy_and_loads_as_sequence_classifier(
    run: Run,
) -> None:
    rows = run(
        "run.max_steps=12", "optimizer.lr=1e-2", "run.validate_every=6", "run.num_logged_samples=8"
    )
    assert of_steps(rows)[0] == pytest.approx(math.log(2), abs=0.2)
    assert of_steps(rows)[-1] < 0.3
    low, right, high = (
        of_steps(rows, f"validation/{name}")[-1] for name in ("acc_low", "acc", "acc_high")
    )
    assert (low, right, high) == (pytest.approx(0.68, abs=0.01), 1.0, 1.0)  # Wilson's, of 8 pairs
    means = [of_steps(rows, f"validation/rewards_{one}_mean")[-1] for one in ("chosen", "rejected")]
    classifier = AutoModelForSequenceClassification.from_pretrained(
        "run/final", dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained("run/final")
    read: dict[str, list[float]] = {"chosen": [], "rejected": []}
    for line in Path("run/data/validation.jsonl").read_text().splitlines():
        row = json.loads(line)
        for one, rewards in read.items():
            ids = tokenizer(f"{row['question']}\n")["input_ids"] + tokenizer(row[one])["input_ids"]
            with torch.no_grad():
                rewards.append(
                    float(classifier(torch.tensor([[*ids, tokenizer.eos_token_id]])).logits)
                )
    assert [sum(rewards) / len(rewards) for rewards in read.values()] == pytest.approx(
        means, rel=1e-4, abs=1e-5
    )


def test_reward_model_margin_option_raises_the_loss(run: Run, in_tmp: Path) -> None:
    data, once = scored(in_tmp), ["run.max_steps=1", "reward_model.global_batch_size=12"]
    plain, asked = (
        run(*data, *once),
        run(*data, *once, "reward_model.margin=true", "run.folder=asked"),
    )
    assert of_steps(asked)[0] > of_steps(plain)[0] + 0.1


def test_center_rewards_coefficient_keeps_mean_reward_near_zero(run: Run) -> None:
    options = ("run.max_steps=12", "optimizer.lr=1e-2")
    centred = run(*options, "reward_model.center_rewards_coefficient=1.0")
    free = run(*options, "run.folder=free")
    both = [abs(of_steps(rows, "train/rewards_all_mean")[-1]) for rows in (centred, free)]
    assert both[0] < 0.2
    assert both[0] < both[1]


def test_ppo_loads_trained_reward_model_as_reward_and_critic_without_load_warning(
    run: Run, in_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run("run.max_steps=12", "optimizer.lr=1e-2")
    recipe = {
        **PPO,
        "model": {"path": "run/initial"},
        "reward_model": {"path": "run"},
        "ppo": {**PPO["ppo"], "kl": {"coef": 0.05}},
        "critic_model": {"path": "run"},
        "validation_reward": PPO["reward"],
        "run": {"max_steps": 1, "folder": "ppo", "num_logged_samples": 16},
    }
    del recipe["reward"]
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "ppo.yaml").write_text(yaml.safe_dump(recipe))
    logging.enable_propagation()
    rows = train_rows("ppo.yaml")
    logging.disable_propagation()
    judged = read_rows("ppo/samples.jsonl")
    assert len({row["score"] for row in judged}) > 2
    assert {"validation/reward", "critic/loss"} <= {name for row in rows for name in row}
    assert "LOAD REPORT" not in caplog.text
