"""What a run takes on paper, against what it takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, ragged
from torch import Tensor, nn

from lockstep.algorithms.roles import Load
from lockstep.config import DType, LearnerSection, LoRA, Parallel
from lockstep.config.loading import load_recipe
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.models.folder import build_skeleton, read_config
from lockstep.models.heads import LogitsHead, ValueHead
from lockstep.models.load import load_backbone, load_causal_lm
from lockstep.models.lora import add_adapters
from lockstep.plan.command import plan_recipe
from lockstep.plan.memory import HeadKind, ModelRank
from lockstep.plan.page import PlanPage
from lockstep.plan.sizes import ModelSizes
from lockstep.samplers.torch.sampler import TorchSampler

Models = Callable[..., Path]


def full(lengths: list[int]) -> Batch:
    """Sequences of which every token counts."""
    bare = ragged(lengths)
    return bare.with_columns({"mask": torch.ones_like(bare.mask)})


def sizes(folder: Path, lora: LoRA | None = None) -> ModelSizes:
    return ModelSizes.from_model(build_skeleton(read_config(folder), str(folder)), lora)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_planned_kv_cache_size_matches_torch_sampler(models: Models, architecture: str) -> None:
    sampler = TorchSampler(load_causal_lm(models(architecture)), 8)
    scheduler = sampler._open_scheduler()
    for key in range(8):
        scheduler.submit(Request(tuple([3] * (CONTEXT - 3)), key), SamplingParams(max_tokens=3))
    scheduler.step()
    held = (
        layer
        for buffer in scheduler._dense_cache.occupied_buffers
        for layer in buffer.layers.values()
    )
    assert (
        sum(keys.nbytes + values.nbytes for keys, values in held)
        == 4 * sizes(models(architecture)).cache * 8 * CONTEXT
    )


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("head", ["logits", "value"])
def test_planned_saved_activations_match_measured_bytes(
    models: Models, architecture: str, dtype: DType, head: HeadKind
) -> None:
    folder = models(architecture)
    model = (
        LogitsHead(load_causal_lm(folder), products=True)
        if head == "logits"
        else ValueHead(load_backbone(folder), 0)
    )
    learner = LearnerSection(device="cpu", dtype=dtype, micro_batch_tokens=48)
    foretold = ModelRank(sizes(folder), learner, Load(24, 1, 2), head).saved_tensors
    assert kept_by(model, dtype) == pytest.approx(foretold, rel=0.05), (
        "all but a few numbers per token"
    )


def kept_by(model: nn.Module, dtype: DType) -> int:
    """Bytes that a pass over 48 tokens leaves for its backward, beside weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    cast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast:
        model(full([24, 24]))
    return sum(
        tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights
    )


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_planned_saved_activations_with_lora_match_measured_bytes(
    models: Models, architecture: str, dtype: DType
) -> None:
    folder, section = models(architecture), LoRA(rank=4)
    lm = load_causal_lm(folder)
    model = LogitsHead(lm, products=True)
    add_adapters(lm, section)
    learner = LearnerSection(device="cpu", dtype=dtype, micro_batch_tokens=48, lora=section)
    foretold = ModelRank(sizes(folder, section), learner, Load(24, 1, 2)).saved_tensors
    assert kept_by(model, dtype) == pytest.approx(foretold, rel=0.05)


D, F, V, LAYERS = 32, 48, 64, 2
Q, K = 32, 16
LAYER = D * Q + 2 * D * K + Q * D + 3 * D * F
NORMS = 2 * D
"""Of `tiny_models.SHAPE`: 4 heads of 8, 2 of keys and values; an untied head."""


def rank(
    folder: Path, head: HeadKind = "logits", tokens: int = 48, rows: int = 2, **learner: Any
) -> ModelRank:
    section = LearnerSection.model_validate(
        {"device": "cpu", "micro_batch_tokens": tokens, **learner}
    )
    return ModelRank(sizes(folder), section, Load(24, 1, rows), head)


def test_model_sizes_match_configuration(models: Models) -> None:
    found = sizes(models("llama"))
    assert (found.products, found.norms, found.table, found.head, found.rest) == (
        LAYER,
        NORMS,
        V * D,
        V * D,
        D,
    )
    assert found.policy_parameters == LAYERS * (LAYER + NORMS) + 2 * V * D + D
    assert found.critic_parameters == found.policy_parameters - V * D + D + 1
    assert found.cache == 2 * LAYERS * K
    assert sizes(models("qwen2 tied")).head == 0
    assert sizes(models("qwen3")).normed == Q + K


def test_planned_rank_memory_counts_weights_moments_and_sharding(models: Models) -> None:
    folder = models("llama")
    whole = 4 * (LAYERS * (LAYER + NORMS) + 2 * V * D + D)
    assert rank(folder).held_bytes == whole
    assert rank(folder).resident_bytes == 3 * whole, "weights and two moments"
    assert rank(folder, parallel={"dp": 2, "cp": 2}).held_bytes == whole // 4
    cut = 4 * (LAYERS * (LAYER // 2 + NORMS) + V * D + D)
    assert rank(folder, parallel={"tp": 2}).held_bytes == cut, "norms are whole on every rank"
    offloaded = rank(folder, parallel={"dp": 2}, cpu_offload=True)
    assert (offloaded.resident_bytes, offloaded.on_host) == (0, 2 * whole), "and the gradient"
    update = rank(folder).list_moments()[-1]
    assert (update.name, update.total_bytes) == ("end of the backward pass", 4 * whole)


def test_planned_lora_rank_keeps_moments_only_for_adapters(models: Models) -> None:
    folder, section = models("llama"), LoRA(rank=4, target_modules=("q_proj", "down_proj"))
    whole, adapters = 4 * sizes(folder).policy_parameters, 4 * LAYERS * 4 * (D + Q + F + D)
    learner = LearnerSection(device="cpu", micro_batch_tokens=48, lora=section)
    found = ModelRank(sizes(folder, section), learner, Load(24, 1, 2))
    assert found.resident_bytes == whole + 3 * adapters
    assert found.list_moments()[-1].total_bytes == whole + 4 * adapters
    two = replace(found, learner=learner.model_copy(update={"parallel": Parallel(dp=2)}))
    assert two.resident_bytes == (whole + 3 * adapters) // 2


def test_planned_layer_activations_match_formula_for_each_layout(models: Models) -> None:
    """fp32: the input and two norms' products, four inputs of products, q, k, v, what attention
    gives, twice, …
    """
    folder, n = models("llama"), 48
    assert rank(folder).layer_activation_bytes() == 4 * n * (
        4 * D + 2 + 2 * D + 3 * Q + 4 + 2 * K + 4 * F
    )
    shared = 4 * n * (2 * D + 1 + 2 * D + 3 * Q // 2 + 2 + K + 2 * F)
    assert rank(folder, parallel={"tp": 2}).layer_activation_bytes() == shared, (
        "the gathered inputs are whole"
    )
    # Chunks of 6 tokens: the fullest of two ranks sees 24 and 6 keys of each sequence, and has
    # masks of 6 × 30.
    keys, masks = 2 * 30, 2 * 6 * 30
    assert rank(folder, parallel={"cp": 2}).layer_activation_bytes() == 4 * (
        n // 2 * (4 * D + 2 + 2 * D + 3 * Q + 4 + 4 * F) + keys * 2 * K + masks
    )
    again = rank(folder, activation_checkpointing=True)
    assert again.activation_bytes == LAYERS * 4 * n * D + again.layer_activation_bytes()


@pytest.mark.parametrize(("dtype", "item"), [("fp32", 4), ("bf16", 2)])
def test_plan_counts_memory_of_penalties_and_sampling_filters(
    models: Models, dtype: DType, item: int
) -> None:
    policy = rank(models("llama"), dtype=dtype)
    filtered = replace(policy, load=replace(policy.load, sampling=SamplingParams(1, top_p=0.9)))
    assert filtered.saved_tensors - policy.saved_tensors == 48 * V * item
    penalized = replace(
        policy, load=replace(policy.load, sampling=SamplingParams(1, presence_penalty=0.1))
    )
    more = penalized.saved_tensors - policy.saved_tensors
    assert more == 48 * V * 4 + 48 * 24 // 2 * 44, "and each token with those before it"


def planned(models: Models, gpus: int, memory: str, *overrides: str) -> PlanPage:
    return plan_recipe(
        load_recipe("sft_chat", [f"model.path={models('llama')}", *overrides]), gpus, memory
    )


def test_plan_proposes_smallest_change_that_fits_memory(models: Models) -> None:
    roomy = planned(models, 2, "1GB").text
    assert "This fits" in roomy
    assert f"lockstep train sft_chat model.path={models('llama')} learner.parallel.dp=2" in roomy
    assert "activation_checkpointing=" not in roomy
    tight = planned(models, 2, "6MB")
    assert tight.fits
    assert "learner.activation_checkpointing=true" in tight.text
    nowhere = planned(models, 2, "0.001MB")
    assert "more memory" in nowhere.text
    assert not nowhere.fits
    assert "It fits" in planned(models, 2, "1GB", "learner.parallel.dp=2").text


def test_plan_of_missing_model_asks_for_folder_with_config_json() -> None:
    with pytest.raises(
        ValueError, match=r"needs only a folder with config\.json: model\.path=FOLDER"
    ):
        plan_recipe(load_recipe("sft_chat"), 8, "80GB")


GUIDE = (Path(__file__).parents[2] / "docs/guides/plan.md").read_text()
SHOWN = re.findall(
    r"```bash\nlockstep plan (\w+) --gpus (\d+) --memory (\w+) model\.path=llama_7b(.*?)\n```",
    GUIDE,
)
[SEVEN] = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
PAGES = re.findall(r"```text\n(plan .*?)\n```", GUIDE, re.DOTALL)
assert PAGES


@pytest.mark.parametrize(("command", "page"), list(zip(SHOWN, PAGES, strict=True)))
def test_plan_guide_shows_actual_plan_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], page: str
) -> None:
    recipe, gpus, memory, overrides = command
    monkeypatch.chdir(tmp_path)
    Path("llama_7b").mkdir()
    Path("llama_7b/config.json").write_text(SEVEN)
    assert (
        plan_recipe(
            load_recipe(recipe, ["model.path=llama_7b", *overrides.split()]), int(gpus), memory
        ).text
        == page
    )


def pasted(page: str) -> list[str]:
    """The recipe and the overrides of the command that a page ends with."""
    command = next(
        line[line.index("lockstep train") :]
        for line in page.splitlines()
        if "lockstep train" in line
    )
    return shlex.split(command)[2:]


@pytest.mark.parametrize("memory", ["1GB", "3MB"], ids=["with a layout", "with changes"])
def test_printed_train_command_reproduces_planned_run(models: Models, memory: str) -> None:
    said = [
        "sft.global_batch_size=16",
        "run.folder=a run",
        'data.prompt="Q: {question}"',
        "learner.parallel.cp=2",
    ]
    recipe, *overrides = pasted(planned(models, 4, memory, *said).text)
    assert set(overrides) >= {*said[:3], f"model.path={models('llama')}"}
    assert len(overrides) == len({override.partition("=")[0] for override in overrides})
    again = load_recipe(recipe, overrides)
    assert "It fits: " in (
        page := plan_recipe(again, again.training_recipe.learner.parallel.ranks, memory).text
    )
    assert pasted(page) == [recipe, *overrides]


PPO_7B = ("sampler=vllm", "sampler.kv_cache_gib=8", "sampler.replicas=8")
BESIDE = {"policy": "critic", "critic": "sampler"}
"""Models, and what a page says after each."""
TP, DP = "learner.parallel.tp=8", "learner.parallel.dp=8"


@pytest.fixture
def seven(tmp_path: Path) -> Callable[..., str]:
    """The page of PPO with 7 billion parameters on eight GPUs, with overrides."""
    (tmp_path / "config.json").write_text(SEVEN)
    said = [f"model.path={tmp_path}", *PPO_7B]
    return lambda *overrides: (
        plan_recipe(load_recipe("ppo_gsm8k", [*said, *overrides]), 8, "83.2GB").text
    )


def blocks(page: str) -> dict[str, str]:
    """What a page says of each model's memory."""
    return {
        name: page[page.index(f"\n{name} ") : page.index(f"\n{end} ")]
        for name, end in BESIDE.items()
    }


def test_each_model_is_planned_in_its_own_layout(seven: Callable[..., str]) -> None:
    mixed, sharded, copied = seven(TP, "critic.parallel.dp=8"), seven(TP), seven(DP)
    assert blocks(mixed) == {
        "policy": blocks(sharded)["policy"],
        "critic": blocks(copied)["critic"],
    }
    assert blocks(sharded)["critic"] != blocks(copied)["critic"]
    assert "layout     dp 1 · tp 8 · cp 1 (critic: dp 8 · tp 1 · cp 1), bf16" in mixed


def test_plan_replaces_critic_layout_whose_rank_count_differs_from_policy(
    seven: Callable[..., str],
) -> None:
    found = seven("critic.parallel.dp=1")
    [command] = [line for line in found.splitlines() if line.startswith("lockstep train")]
    assert command.endswith(
        "learner.parallel.dp=4 learner.parallel.tp=2 critic.parallel.dp=4 critic.parallel.tp=2"
    )
    assert "critic.parallel.dp=1" not in command
    assert "It fits: " in seven(*(word for word in pasted(found)[1:] if "parallel" in word))
    assert "critic.parallel" not in seven()
