"""Engines beside learners on paper: turns, and what carriers and judges keep on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gpus import show_gpus

from lockstep.algorithms.base import Algorithm
from lockstep.cluster.placement import plan_placement
from lockstep.config import Parallel, SamplerSection
from lockstep.config.loading import load_recipe
from lockstep.core.errors import InputError
from lockstep.models.folder import build_skeleton, read_config
from lockstep.plan.estimate import MemoryEstimate
from lockstep.plan.layouts import LayoutSearch
from lockstep.plan.sizes import ModelSizes
from lockstep.samplers.cache_budget import usable_bytes


def sizes(folder: Path) -> ModelSizes:
    return ModelSizes.from_model(build_skeleton(read_config(folder), str(folder)))


SEVEN_BILLION = """{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}"""

EIGHT = Parallel(dp=8)


def estimated(config: Path, *overrides: str, parallel: Parallel = EIGHT) -> MemoryEstimate:
    """PPO with a critic and a reference policy over GPUs of 80 GB, all of which have a part of an
    engine.
    """
    recipe = load_recipe(
        "ppo_gsm8k", ["sampler=vllm", "ppo.kl.coef=0.1", f"model.path={config.parent}", *overrides]
    )
    model = read_config(config.parent)
    search = LayoutSearch(recipe.expect_recipe(Algorithm), sizes(config.parent), model, 80 * 10**9)
    found = search.estimate_layout(parallel, {"sync_every_pass": True})
    assert found is not None
    return found


@pytest.fixture
def seven_billion(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(SEVEN_BILLION)
    return tmp_path / "config.json"


def test_in_turns_a_gpu_holds_all_learners_or_an_engine(seven_billion: Path) -> None:
    found = estimated(seven_billion)
    ranks, sampler = found.ranks, found.sampler
    assert sampler is not None
    resident = sum(rank.resident_bytes for rank in ranks.values())
    assert set(ranks) == {"policy", "critic", "reference"}
    assert found.offloaded_bytes == resident
    passing = max(rank.peak_moment.total_bytes - rank.resident_bytes for rank in ranks.values())
    buckets = 2 * 2 * 4096 * 32000
    assert found.device_bytes == max(resident + passing, sampler.total_bytes) + buckets
    assert found.device_bytes <= 80 * 10**9, "in dp 8"
    assert found.beside_engine == buckets, "what CUDA IPC carries weights in"
    budget = found.cache_budget
    assert budget is not None
    assert sampler.seen == 256 * 32000 * (4 + 1 / 8), (
        "counts of tokens, and which are seen, of each place"
    )
    assert budget.other == buckets + sampler.weights + sampler.seen, (
        "the cache has the rest of the GPU"
    )


def test_planned_gpu_memory_without_turns_adds_learners_and_engine(seven_billion: Path) -> None:
    found, stayed = estimated(seven_billion), estimated(seven_billion, "cluster.offload_idle=false")
    assert stayed.sampler is not None
    assert stayed.offloaded_bytes == 0
    assert (
        stayed.beside_engine
        == sum(r.peak_moment.total_bytes for r in stayed.ranks.values()) + stayed.buckets
    )
    assert (
        stayed.device_bytes
        == stayed.beside_engine + stayed.sampler.total_bytes
        > 1.5 * found.device_bytes
    )
    ahead = estimated(seven_billion, "ppo.one_step_ahead=true", "ppo.correction.kind=token_tis")
    assert ahead.offloaded_bytes == 0
    assert ahead.device_bytes == stayed.device_bytes, "both work at the same time"
    assert ahead.copies == 2 * 2 * ahead.ranks["policy"].sizes.policy_parameters, (
        "the old weights and the new, in bf16"
    )


def test_plan_reserves_memory_for_each_extra_process_on_gpu(seven_billion: Path) -> None:
    found, memory = estimated(seven_billion), 80 * 10**9
    assert found.process_count == 4, "policy, critic, reference policy, and a part of an engine"
    assert found.context_bytes == 3 * 2**30, "a CUDA context and NCCL's buffers, of all but one"
    assert usable_bytes(memory, 1) == int(0.92 * memory)
    assert usable_bytes(memory, 4) == int(0.92 * memory) - 3 * 2**30
    budget = found.cache_budget
    assert budget is not None
    assert found.sampler is not None
    told = budget.apply_to_section(SamplerSection(), memory).kv_cache_gib
    assert told is not None
    assert int(told * 2**30) == found.sampler.cache, "the plan and the engine have the same number"
    tight = int((budget.other + budget.least) / 0.92) + 3 * 2**30
    replace(budget, processes=3).apply_to_section(SamplerSection(), tight)
    with pytest.raises(InputError, match="no room"):
        budget.apply_to_section(SamplerSection(), tight)
    alone = estimated(seven_billion, "cluster.placement=separate")
    assert alone.process_count == 3, "the ranks; the engine has a separate GPU"


def test_plan_adds_judge_memory_and_requires_its_kv_cache_size(
    seven_billion: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, 1)
    judged = [
        "learner.device=auto",
        "learner.dtype=bf16",
        "sampler=vllm",
        f"model.path={seven_billion.parent}",
    ]
    judge = [*judged, f"judge.path={seven_billion.parent}", "judge.sampler.backend=vllm"]
    sized = [*judge, "judge.sampler.kv_cache_gib=4"]
    with pytest.raises(InputError, match=r"set judge\.sampler\.kv_cache_gib"):
        plan_placement(load_recipe("self_rewarding", judge).expect_recipe(Algorithm))
    found = dict[str, MemoryEstimate]()
    for name, options in {
        "judge": sized,
        "none": judged,
        "stays": [*sized, "cluster.offload_idle=false"],
    }.items():
        recipe = load_recipe("self_rewarding", options).expect_recipe(Algorithm)
        found[name] = MemoryEstimate.from_recipe(
            recipe, sizes(seven_billion.parent), plan_placement(recipe)
        )
    # what vLLM counts penalties in
    size = 2 * 6_738_415_616 + 4 * 2**30 + 256 * 32000 * (4 + 1 / 8)
    assert found["judge"].beside_engine - found["none"].beside_engine == size
    assert found["stays"].beside_engine - found["stays"]._learner_bytes == size


@pytest.mark.parametrize(
    ("overrides", "item"),
    [([], 2), (["cluster.placement=separate"], 2), (["sampler=torch"], 4)],
    ids=["on the same GPUs", "on other GPUs", "an engine in fp32"],
)
def test_planned_transfer_buckets_use_engine_dtype(
    seven_billion: Path, overrides: list[str], item: int
) -> None:
    assert estimated(seven_billion, *overrides).buckets == 2 * item * 4096 * 32000
