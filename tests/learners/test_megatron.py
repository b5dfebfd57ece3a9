"""Runs whose learners are Megatron's: the same rows as torch's, the same ways to stop, go on and be
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from killing import assert_same, child_process, final, killing
from safetensors.torch import load_file
from tiers import full
from tiny_recipe import KTO, ONLINE_DPO, ORPO, RECIPE, REWARDS, SIMPO
from training import step_rows, train_rows
from workspace import furnish

from lockstep.config.loading import RecipeError, load_recipe
from lockstep.run.stop import StoppedRun
from lockstep.run.train import train_recipe

pytestmark = [pytest.mark.needs("megatron"), pytest.mark.usefixtures("megatron")]

Run = Callable[..., list[dict[str, Any]]]
TWO_LAYERS = "model.scratch.config.num_hidden_layers=2"
LAYOUTS = {"alone": (), "stages": ("learner.parallel.pp=2",), "copies": ("learner.parallel.dp=2",)}


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("alone", marks=pytest.mark.proof),
        "stages",
        pytest.param("copies", marks=pytest.mark.proof),
    ],
)
def test_megatron_ppo_matches_torch_and_syncs_all_weights_to_sampler(run: Run, layout: str) -> None:
    options = (TWO_LAYERS, "ppo.kl.coef=0.1")
    theirs = run("run.folder=torch", *options)
    ours = run("run.folder=megatron", "learner=megatron", *LAYOUTS[layout], *options)
    for one, other in zip(step_rows(ours), step_rows(theirs), strict=True):
        for name in (
            "policy/loss",
            "policy/grad_norm",
            "critic/loss",
            "critic/grad_norm",
            "train/reward",
        ):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-7), name
        assert one["agreement/max_abs_logprob_diff"] < 1e-4
        assert one["weight_sync/read_whole"] == one["weight_sync/attested"] > 0


@pytest.mark.full
def test_stopped_megatron_run_resumes_to_bit_identical_weights(run: Run) -> None:
    options = (TWO_LAYERS, "learner=megatron", "learner.parallel.pp=2", "run.max_steps=2")
    whole = run("run.folder=whole", *options)
    with pytest.raises(StoppedRun):
        run("run.folder=stopped", *options, "run.max_time_s=0.01")
    assert run("run.folder=stopped", *options, "run.max_time_s=0.01") == whole
    assert_same(final("stopped"), final("whole"))


@pytest.mark.proof
def test_killed_megatron_pipeline_stage_does_not_change_metrics(run: Run) -> None:
    options = (
        TWO_LAYERS,
        "learner=megatron",
        "learner.parallel.pp=2",
        "run.max_steps=24",
        "run.save_every=2",
    )
    whole = run("run.folder=whole", *options)
    with killing("lost", [4], lambda: child_process("value learner rank 1")) as victims:
        rows = run("run.folder=lost", *options)
    assert victims
    assert rows == whole


@pytest.mark.parametrize("recipe", ["sft.yaml", full("dpo.yaml"), full("judged.yaml")])
def test_megatron_sft_dpo_and_judged_losses_match_torch(in_tmp: Path, recipe: str) -> None:
    furnish(in_tmp)
    rows = {}
    for backend in ("torch", "megatron"):
        options = [f"learner={backend}", f"run.folder={backend}", "run.max_steps=2"]
        options += ["judge.max_no_verdict_rate=1"] if recipe == "judged.yaml" else []
        rows[backend] = train_rows(recipe, *options)
    assert rows["megatron"]
    for ours, theirs in zip(rows["megatron"], rows["torch"], strict=True):
        shared = {name for name in theirs if "loss" in name or "grad_norm" in name}
        assert {name: ours[name] for name in shared} == pytest.approx(
            {n: theirs[n] for n in shared}, rel=1e-4, abs=1e-6
        )
    if recipe == "judged.yaml":
        assert (
            Path("megatron/samples.jsonl").read_bytes() == Path("torch/samples.jsonl").read_bytes()
        ), "the same pairs"


@pytest.mark.parametrize(
    ("recipe", "optimizer"),
    [
        full(KTO, "AdamW"),
        full(ONLINE_DPO, "RMSprop"),
        pytest.param(SIMPO, "AdamW", marks=pytest.mark.proof),
        pytest.param(ORPO, "RMSprop", marks=pytest.mark.proof),
    ],
    ids=lambda value: value if isinstance(value, str) else value["algorithm"],
)
def test_megatron_kto_online_dpo_simpo_and_orpo_weights_match_torch(
    in_tmp: Path, recipe: dict[str, Any], optimizer: str
) -> None:
    Path("rewards.py").write_text(REWARDS)
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
    for backend in ("torch", "megatron"):
        own = [
            f"learner={backend}",
            f"optimizer.name={optimizer}",
            f"run.folder={backend}",
            "run.max_steps=2",
        ]
        train_recipe(load_recipe("tiny.yaml", own))
    ours, theirs = (
        load_file(f"{backend}/final/model.safetensors") for backend in ("megatron", "torch")
    )
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.allclose(ours[name], weight, rtol=0, atol=1e-5), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("learner.parallel.pp=2",), r"parallel\.pp requires learner\.backend=megatron"),
        (
            ("learner=megatron", "learner.parallel.dp_replicate=2"),
            r"every rank of parallel\.dp already has a copy",
        ),
        (("learner=megatron", "learner.compile=true"), r"compile requires learner\.backend=torch"),
    ],
)
def test_options_unsupported_by_learner_backend_are_refused_at_recipe_load(
    in_tmp: Path, options: tuple[str, ...], said: str
) -> None:
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.raises(RecipeError, match=said):
        load_recipe("tiny.yaml", list(options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("learner.dtype=bf16",), r"supports bf16 only on GPUs; use learner\.dtype=fp32"),
        (
            ("learner.parallel.pp=2",),
            r"parallel\.pp is 2, but 1 layers cannot be split into 2 equal stages.*; lower it",
        ),
        (
            ("model.scratch.config.model_type=mistral",),
            r"supports only llama, qwen2, qwen3; for mistral",
        ),
    ],
)
def test_megatron_refuses_unsupported_dtype_stage_count_and_model_type(
    run: Run, options: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        run("learner=megatron", *options)
