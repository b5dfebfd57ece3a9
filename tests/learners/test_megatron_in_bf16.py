"""Megatron in bf16, which CPUs refuse: the refusal is lifted, and stages send over gloo what they
send over NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from tiny_models import OPTIMIZER, SquaredError, WeightedLogprob, ragged
from twins import section

from lockstep.cluster.learner_group import MeshLearner, launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.core.types import HeadKind
from lockstep.learners.base import train
from lockstep.learners.megatron.backend import MegatronTraining

pytestmark = [
    pytest.mark.needs("gloo"),
    pytest.mark.needs("megatron"),
    pytest.mark.usefixtures("megatron"),
]
LENGTHS = (7, 1, 19, 4, 33, 2, 12, 9)


@pytest.fixture(autouse=True)
def lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal."""
    monkeypatch.setattr(MegatronTraining, "require_model", lambda *_: None)


@contextmanager
def started(model: Path, head: HeadKind, **parallel: int) -> Iterator[MeshLearner]:
    chosen = section("megatron", **parallel).model_copy(update={"dtype": "bf16"})
    learner = launch_learner(
        LearnerSpec(str(model), head, chosen, OPTIMIZER, seed=0), timeout_s=400.0
    )
    with ExitStack() as stack:
        stack.callback(learner.close)
        yield learner


@pytest.mark.parametrize("head", ["logits", pytest.param("value", marks=pytest.mark.full)])
def test_bf16_two_stage_megatron_scores_are_bit_identical_to_one_stage(
    models: Callable[..., Path], head: HeadKind
) -> None:
    model, batch = models("qwen3"), ragged(LENGTHS)
    loss = WeightedLogprob() if head == "logits" else SquaredError()
    with started(model, head) as one, started(model, head, pp=2) as two:
        for seed in range(2):
            for mine, theirs in zip(scores(one, head, seed), scores(two, head, seed), strict=True):
                assert mine.any()
                assert torch.equal(mine, theirs)
            alone, staged = (train(learner, batch, loss).floats() for learner in (one, two))
            assert alone["grad_norm"] > 0
            assert staged == pytest.approx(alone, rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("parallel", [{"tp": 2}, {"cp": 2}], ids=["tp2", "cp2"])
def test_bf16_megatron_tp_and_cp_match_torch_within_rounding(
    models: Callable[..., Path], parallel: dict[str, int]
) -> None:
    model, batch = models("qwen3"), ragged(LENGTHS)
    torchs = section("torch").model_copy(update={"dtype": "bf16"})
    alone = LearnerSpec(str(model), "logits", torchs, OPTIMIZER, seed=0).build()
    with started(model, "logits", **parallel) as many:
        for _ in range(2):
            gap = (alone.logprobs(batch) - many.logprobs(batch))[batch.mask].abs()
            assert 0 < gap.mean() < 0.05
            mine, theirs = (
                train(learner, batch, WeightedLogprob()).floats() for learner in (alone, many)
            )
            assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=0.05)


def scores(learner: MeshLearner, head: HeadKind, seed: int) -> tuple[torch.Tensor, ...]:
    batch = ragged(LENGTHS, seed)
    return (learner.logprobs(batch),) if head == "logits" else tuple(learner.values(batch))
