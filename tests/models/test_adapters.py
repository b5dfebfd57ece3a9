"""Adapters on small models of several families: what learns, what is merged, and what a plain model
makes of that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import (
    OPTIMIZER,
    SECTION,
    SquaredError,
    WeightedLogprob,
    plain_logprobs,
    plain_model,
    ragged,
)
from torch import Tensor

from lockstep.cluster.specs import LearnerSpec
from lockstep.config import DType, LearnerSection, LoRA
from lockstep.core.types import HeadKind
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner

Models = Callable[..., Path]
LENGTHS = (7, 1, 19, 4, 33, 2, 12, 9)
FAST = OPTIMIZER.model_copy(update={"lr": 2e-2, "eps": 1e-8, "weight_decay": 0.0})


def section(
    rank: int = 3,
    alpha: int = 12,
    target_modules: tuple[str, ...] | Literal["all-linear"] | None = None,
    **more: bool | DType,
) -> LearnerSection:
    return SECTION.model_copy(
        update={"lora": LoRA(rank=rank, alpha=alpha, target_modules=target_modules), **more}
    )


def taught(
    folder: Path, head: HeadKind = "logits", own: LearnerSection | None = None, steps: int = 3
) -> RankLearner:
    """A learner after some steps, when no adapter is zero any more."""
    learner = LearnerSpec(str(folder), head, own or section(), FAST, seed=3).build()
    for seed in range(steps):
        train(
            learner,
            ragged(LENGTHS, seed),
            WeightedLogprob() if head == "logits" else SquaredError(),
        )
    return learner


def held(learner: RankLearner) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.model.named_parameters()}


@pytest.mark.parametrize("architecture", ["llama", "qwen2 tied", "qwen3", "gpt neox"])
def test_merged_lora_weights_in_plain_model_match_learner_logprobs(
    models: Models, architecture: str
) -> None:
    folder, batch = models(architecture), ragged(LENGTHS)
    learner, model = taught(folder), plain_model(folder)
    before = plain_logprobs(model, batch)
    merged = dict(learner.weights())
    names = {name for name, _ in model.named_parameters()}
    assert merged.keys() == names | {name for name, _ in model.named_buffers()}
    model.load_state_dict(
        {name: tensor.double() for name, tensor in merged.items() if name in names}, strict=False
    )
    expected = plain_logprobs(model, batch).detach()
    torch.testing.assert_close(learner.logprobs(batch).double(), expected, atol=2e-5, rtol=0.0)
    assert (expected - before).abs().max() > 0.1, "it has learned something"


def test_merged_lora_weight_is_base_plus_scaled_product_and_leaves_learner_unchanged(
    models: Models,
) -> None:
    learner = taught(models("qwen2"))
    parts, merged = held(learner), dict(learner.weights())
    bases = [
        name.removesuffix(".base_layer.weight")
        for name in parts
        if name.endswith(".base_layer.weight")
    ]
    assert len(bases) == 2 * 7
    for base in bases:
        w, a, b = (
            parts[f"{base}.{part}.weight"].double()
            for part in ("base_layer", "lora_A.default", "lora_B.default")
        )
        assert (a.shape[0], b.shape[1]) == (3, 3)
        expected = w + 12 / 3 * b @ a
        found = merged[f"{base.removeprefix('lm.')}.weight"]
        torch.testing.assert_close(found.double(), expected, atol=3e-7, rtol=3e-7)
        assert not torch.equal(found, parts[f"{base}.base_layer.weight"])
    assert all(torch.equal(tensor, parts[name]) for name, tensor in held(learner).items())


@pytest.mark.parametrize("head", ["logits", "value", "reward"])
def test_only_adapters_and_value_head_are_trained_and_saved(
    models: Models, head: HeadKind, tmp_path: Path
) -> None:
    folder = models("llama")
    first, learner = taught(folder, head, steps=0), taught(folder, head)
    before, after = held(first), held(learner)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    unit = {"logits": set(), "value": {"value.weight", "value.bias"}, "reward": {"value.weight"}}[
        head
    ]
    assert moved == {name for name in after if ".lora_" in name} | unit
    assert {name for name, p in learner.model.named_parameters() if p.requires_grad} == moved
    learner.save(tmp_path)
    assert learner.poll_save(wait=True)
    assert load_file(tmp_path / "model.safetensors").keys() == moved
    kept = load_file(tmp_path / "optimizer.safetensors")
    assert kept.keys() == {
        f"{kind}.{name}" for kind in ("exp_avg", "exp_avg_sq", "step") for name in moved
    }


def test_learner_resumed_from_saved_adapters_is_bit_identical(
    models: Models, tmp_path: Path
) -> None:
    folder, batch = models("qwen3"), ragged(LENGTHS, 9)
    learner = taught(folder)
    learner.save(tmp_path)
    assert learner.poll_save(wait=True)
    expected = train(learner, batch, WeightedLogprob()).floats()
    other = taught(folder, steps=1)
    other.load(tmp_path)
    assert train(other, batch, WeightedLogprob()).floats() == expected
    assert all(
        torch.equal(tensor, other_tensor)
        for (_, tensor), (_, other_tensor) in zip(learner.weights(), other.weights(), strict=True)
    )


def test_new_adapters_leave_outputs_unchanged_and_match_peft_initialization(models: Models) -> None:
    folder, batch = models("llama"), ragged(LENGTHS)
    plain = LearnerSpec(str(folder), "logits", SECTION, None, seed=3).build()
    learner = taught(folder, steps=0)
    assert torch.equal(learner.logprobs(batch), plain.logprobs(batch))
    assert all(
        torch.equal(merged, tensor)
        for (_, merged), (_, tensor) in zip(learner.weights(), plain.weights(), strict=True)
    )
    torch.manual_seed(0)
    from peft import LoraConfig, inject_adapter_in_model

    theirs = inject_adapter_in_model(
        LoraConfig(r=64, target_modules=["down_proj"]), plain_model(folder).float()
    )
    ours = held(taught(folder, own=section(rank=64, target_modules=("down_proj",)), steps=0))
    name = "model.layers.0.mlp.down_proj.lora_A.default.weight"
    a, peft_a = ours[f"lm.{name}"], dict(theirs.named_parameters())[name]
    assert a.abs().max() <= 1 / 48**0.5
    assert float(a.detach().std()) == pytest.approx(float(peft_a.detach().std()), rel=0.05)
    assert not any(tensor.any() for name, tensor in ours.items() if ".lora_B." in name)


def test_all_linear_adapts_every_linear_layer_as_in_peft(models: Models) -> None:
    named, unnamed = (
        held(taught(models("llama"), own=section(target_modules=words), steps=0))
        for words in ("all-linear", None)
    )
    assert named.keys() == unnamed.keys()


def test_only_modules_in_target_modules_get_adapters(models: Models) -> None:
    names = held(
        taught(
            models("llama"), own=section(target_modules=("q_proj", "layers.1.mlp.up_proj")), steps=0
        )
    )
    adapted = {name.split(".lora_A.")[0] for name in names if ".lora_A." in name}
    assert adapted == {f"lm.model.layers.{n}.self_attn.q_proj" for n in (0, 1)} | {
        "lm.model.layers.1.mlp.up_proj"
    }
