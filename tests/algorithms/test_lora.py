"""Runs that learn adapters alone, of every algorithm: they learn, go on exactly, and are written
for everybody.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from killing import copy_unfinished
from safetensors.torch import load_file
from tiny_recipe import DPO, GRPO, REWARD_MODEL, REWARDS, SELF_REWARDING
from tiny_recipe import RECIPE as PPO
from torch import Tensor
from training import train_rows
from transformers import AutoModelForCausalLM

from lockstep.cli import main
from lockstep.run.checkpoint.checkpoints import CheckpointError
from lockstep.run.checkpoint.export import export_checkpoint

Rows = list[dict[str, Any]]
Run = Callable[..., Rows]
SFT = {
    **{key: value for key, value in DPO.items() if key != "dpo"},
    "algorithm": "sft",
    "data": PPO["data"],
    "sft": {"global_batch_size": 8, "max_tokens": 96},
}
RECIPES = {
    "sft": SFT,
    "dpo": DPO,
    "reward_model": REWARD_MODEL,
    "ppo": PPO,
    "grpo": GRPO,
    "judged": SELF_REWARDING,
}
LORA = "learner.lora={rank: 4, alpha: 8}"
WIDE = "model.scratch.config.initializer_range=0.2"
"""A vocabulary head that is not learned must be able to say something."""
LOSS = {"sft": "policy/loss"}


@pytest.fixture
def run(in_tmp: Path) -> Run:
    """Runs a small recipe with adapters and overrides in an empty folder; returns the rows of
    metrics.jsonl.
    """
    (in_tmp / "rewards.py").write_text(REWARDS)
    for name, recipe in RECIPES.items():
        (in_tmp / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return lambda name, *overrides: train_rows(f"{name}.yaml", LORA, *overrides)


def series(rows: Rows, metric: str) -> list[float]:
    return [row[metric] for row in rows if metric in row]


def saved(
    step: int, learner: str = "policy", folder: str = "run", file: str = "model"
) -> dict[str, Tensor]:
    return load_file(f"{folder}/checkpoints/step_{step:06d}/{learner}/{file}.safetensors")


def adapters_alone(names: Any) -> bool:
    return bool(names) and all(
        ".lora_A." in name or ".lora_B." in name or "value." in name for name in names
    )


def only_adapted_maps_moved(folder: str = "run") -> bool:
    first, last = (load_file(f"{folder}/{part}/model.safetensors") for part in ("initial", "final"))
    moved = {name for name in first if name in last and not torch.equal(first[name], last[name])}
    return moved == {name for name in first if name.endswith("_proj.weight")}


@pytest.mark.parametrize("name", ["sft", "dpo", "reward_model"])
def test_lora_lowers_loss_and_trains_and_saves_only_adapters(run: Run, name: str) -> None:
    loss = series(
        run(name, WIDE, "run.max_steps=12", "run.save_every=12", "optimizer.lr=2e-2"),
        LOSS.get(name, "train/loss"),
    )
    assert loss[-1] < 0.8 * loss[0]
    assert adapters_alone(saved(12, "reward_model" if name == "reward_model" else "policy"))
    assert adapters_alone(
        saved(12, "reward_model" if name == "reward_model" else "policy", file="optimizer")
    )
    assert only_adapted_maps_moved()
    if name == "dpo":
        assert loss[0] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_lora_raises_reward_with_sampler_learner_agreement(run: Run, name: str) -> None:
    merged = ("agreement.exact=false", "run.save_every=14")
    rows = run(name, WIDE, "run.max_steps=14", "policy.lr=0.02", f"{name}.kl.coef=0.01", *merged)
    reward = series(rows, "train/reward")
    assert sum(reward[-3:]) / 3 > sum(reward[:3]) / 3 + 0.03
    assert max(series(rows, "agreement/token_mult_prob_error")) == pytest.approx(1.0, abs=1e-5)
    assert max(series(rows, "agreement/max_abs_logprob_diff")) < 1e-4
    assert series(rows, "weight_sync/attested")[0] == series(rows, "weight_sync/read_whole")[0] > 10
    assert adapters_alone(saved(14))
    assert name == "grpo" or {"value.weight", "value.bias"} < saved(14, "critic").keys()
    assert only_adapted_maps_moved()


def test_self_rewarding_reference_takes_over_lora_adapters_of_policy(run: Run) -> None:
    rows = run(
        "judged",
        "optimizer.lr=1e-2",
        "data.task.validation_prompts=1",
        "run.save_every=1",
        "run.keep=9",
    )
    losses = series(rows, "train/preference_loss")
    assert (losses[0], losses[2]) == pytest.approx((math.log(2), math.log(2)), abs=1e-5)
    assert losses[1] != pytest.approx(math.log(2), abs=1e-5)
    # it takes over with the first step of an iteration
    policy, reference = (saved(2), saved(3, "reference"))
    assert adapters_alone(policy)
    assert all(torch.equal(policy[key], reference[key]) for key in policy)
    assert any(tensor.any() for key, tensor in reference.items() if ".lora_B." in key)


def test_resumed_lora_ppo_run_has_bit_identical_metrics_and_weights(run: Run) -> None:
    options = ("ppo.kl.coef=0.1", "run.max_steps=2", "run.save_every=1")
    whole = run("ppo", "run.folder=whole", *options)
    copy_unfinished(2)
    assert run("ppo", "run.folder=stopped", *options) == whole
    for name in ("policy", "critic"):
        for file in ("model", "optimizer"):
            one, other = saved(2, name, "whole", file), saved(2, name, "stopped", file)
            assert all(torch.equal(one[key], other[key]) for key in one)
    one, other = (
        Path(folder, "final/model.safetensors").read_bytes() for folder in ("whole", "stopped")
    )
    assert one == other


def logits(model: Any) -> Tensor:
    return model.eval()(torch.arange(3, 40)[None]).logits.detach()


def test_peft_loads_adapters_with_logits_of_merged_model(run: Run) -> None:
    from peft import PeftModel

    run("sft", "run.max_steps=6", "optimizer.lr=1e-2")
    merged = AutoModelForCausalLM.from_pretrained("run/final")
    base = AutoModelForCausalLM.from_pretrained("run/initial")
    before = logits(base)
    assert main(["export", "run", "adapters", "--adapter"]) == 0
    for folder in ("run/final/adapter", "adapters"):
        base = AutoModelForCausalLM.from_pretrained("run/initial")
        torch.testing.assert_close(
            logits(PeftModel.from_pretrained(base, folder)), logits(merged), atol=2e-6, rtol=0.0
        )
    assert (logits(merged) - before).abs().max() > 0.01
    config = json.loads(Path("adapters/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (
        4,
        8,
        "run/initial",
    )
    assert {path.name for path in Path("adapters").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert export_checkpoint(Path("run"), Path("again")) == 6
    assert (
        Path("again/model.safetensors").read_bytes()
        == Path("run/final/model.safetensors").read_bytes()
    )


def test_lora_export_rejects_merge_into_changed_base_but_exports_adapter(run: Run) -> None:
    """And a run whose first model is another now cannot be merged; its adapters are there as they
    were.
    """
    run("sft", "run.folder=first", "optimizer.lr=1e-2")
    run("ppo", "run.folder=second", "run.max_steps=1", "model={path: first/final}")
    shutil.copy("first/initial/model.safetensors", "first/final/model.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"has adapters for a different model than first/final now holds:\n  model\.model",
    ):
        export_checkpoint(Path("second"), Path("merged"))
    assert export_checkpoint(Path("second"), Path("adapters"), adapter=True) == 1


@pytest.mark.parametrize(
    "option",
    ["learner.lora.rank=2", "learner.lora.alpha=32", "learner.lora.target_modules=[q_proj]"],
)
def test_every_lora_option_changes_the_loss(run: Run, option: str) -> None:
    loss = [
        series(run("sft", f"run.folder=of_{n}", *more), LOSS["sft"])[-1]
        for n, more in enumerate(((), (option,)))
    ]
    assert loss[0] != loss[1]
