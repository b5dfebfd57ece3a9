"""The time of a step on paper: operations beside those that torch counts, and what rates do to each
phase.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tiny_models import OPTIMIZER, SECTION, WeightedLogprob, ragged
from torch.utils.flop_counter import FlopCounterMode

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.roles import Inference, Load
from lockstep.cli import main
from lockstep.cluster.specs import LearnerSpec
from lockstep.config.loading import load_recipe
from lockstep.models.folder import build_skeleton, read_config
from lockstep.plan.memory import ModelRank
from lockstep.plan.sizes import ModelSizes
from lockstep.plan.time import DeviceRates, EngineCounts, StepTime, count_learning

RATES = DeviceRates(products=1e12, learner=0.5, memory=1e11, layer_s=1e-3, sync=1e9, host=2e9)
ENGINES = EngineCounts(count=1, width=1, sequences=8)
LOAD = Load(sequence=64, group=1, rows=8, updates=2, scored=16, generated=64)


@pytest.fixture
def rank(models: Callable[..., Path]) -> ModelRank:
    folder = models("llama")
    return ModelRank(
        ModelSizes.from_model(build_skeleton(read_config(folder), str(folder))), SECTION, LOAD
    )


@pytest.fixture
def inference() -> Inference:
    found = (
        load_recipe("ppo_arithmetic", ["sampling.max_tokens=32"]).expect_recipe(Algorithm).inference
    )
    assert found is not None
    return found


def test_planned_training_flops_match_torch_flop_counter(
    models: Callable[..., Path], rank: ModelRank
) -> None:
    """Attention is left out of both: torch counts what kernels compute, and that is more than what
    is seen.
    """
    learner, some = (
        LearnerSpec(str(models("llama")), "logits", SECTION, OPTIMIZER, 0).build(),
        ragged([30]),
    )
    batch = some.with_columns({"mask": torch.ones_like(some.mask)})
    with FlopCounterMode(display=False) as counter:
        learner.forward_backward(batch, WeightedLogprob())
    products = sum(
        flops for kind, flops in counter.get_flop_counts()["Global"].items() if "mm" in str(kind)
    )
    one = replace(
        rank, load=Load(sequence=30, group=1, rows=1), sizes=replace(rank.sizes, queries=0)
    )
    head = 2 * 30 * (rank.sizes.head or rank.sizes.table)
    assert count_learning(one) == pytest.approx(products, abs=2 * head), (
        "but for blocks of the head"
    )


def test_planned_phase_times_follow_device_rates(rank: ModelRank, inference: Inference) -> None:
    ranks = {"policy": rank, "reference": replace(rank, trained=False)}
    sent = 4 * rank.sizes.policy_parameters
    time = StepTime.from_ranks(ranks, inference, ENGINES, RATES, sent, copied=10**9)
    assert time.total_seconds == pytest.approx(
        time.generate + time.weight_sync + time.turns + time.score + time.learn
    )
    assert time.weight_sync == pytest.approx(4 * rank.sizes.policy_parameters / 1e9)
    assert time.turns == pytest.approx(0.5)
    assert time.learn == pytest.approx(count_learning(rank) / 0.5e12)
    assert time.score == pytest.approx(time.learn / 3 * (1 + 1 / 8)), (
        "the exact policy scores one response of eight again"
    )
    fast = StepTime.from_ranks(
        ranks, inference, ENGINES, replace(RATES, memory=1e15, products=1e20)
    )
    assert fast.generate == pytest.approx(2 * 32 * rank.sizes.layers * 1e-3, rel=1e-3), (
        "two waves of eight rows"
    )


def test_plan_prints_step_time_only_if_rates_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rates.json").write_text(json.dumps({"rates": {"fp32": asdict(RATES)}}))
    words = ["plan", "ppo_arithmetic", "--gpus", "1", "--memory", "80GB"]
    assert main(words) == 0
    assert "a step, with every" not in capsys.readouterr().out
    assert main([*words, "--rates", str(tmp_path / "rates.json")]) == 0
    told = capsys.readouterr().out
    assert "a step, with every response at its maximum length" in told
    assert "learn" in told
