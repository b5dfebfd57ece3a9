"""Exact learners over ranks: the bits of one process (level E4), before and after an update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import OPTIMIZER, SECTION, SquaredError, over, ragged
from torch import Tensor
from twins import Models

from lockstep.cluster.learner_group import MeshLearner, launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.core.batch import Batch
from lockstep.core.types import HeadKind, SamplingParams
from lockstep.learners.base import Learner, train
from lockstep.losses.cross_entropy import CrossEntropyLoss

pytestmark = pytest.mark.needs("gloo")
LENGTHS = (7, 1, 19, 47, 33, 2, 12, 9, 16, 17, 41)
SAMPLINGS = (None, SamplingParams(8, temperature=0.7, top_p=0.8, repetition_penalty=1.2))
LAYOUTS = [
    pytest.param(({"dp": 2}, "qwen3", "logits"), id="dp2"),
    pytest.param(({"dp": 2}, "qwen3", "value"), id="dp2-value"),
    pytest.param(({"cp": 2}, "qwen2 window", "logits"), id="cp2"),
    pytest.param(({"dp": 2, "cp": 2}, "llama", "value"), id="dp2cp2-value", marks=pytest.mark.full),
    pytest.param(({"tp": 2}, "qwen3", "logits"), id="tp2"),
    pytest.param(({"tp": 2}, "qwen2 tied", "value"), id="tp2-value", marks=pytest.mark.full),
    pytest.param(({"dp": 2, "tp": 2}, "llama", "logits"), id="dp2tp2", marks=pytest.mark.full),
    pytest.param(({"cp": 2, "tp": 2}, "qwen2 tied", "logits"), id="cp2tp2", marks=pytest.mark.full),
    pytest.param(({"dp_replicate": 2}, "llama", "logits"), id="2copies", marks=pytest.mark.full),
    pytest.param(({"dp": 2, "dp_replicate": 2}, "qwen2 tied", "logits"), id="2copiesdp2", marks=pytest.mark.proof),
]  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def trio(
    request: pytest.FixtureRequest, models: Models
) -> Iterator[tuple[MeshLearner, Learner, HeadKind]]:
    parallel, architecture, head = request.param
    section = SECTION.compute_exactly()
    one = LearnerSpec(str(models(architecture)), head, section, OPTIMIZER, seed=0)
    many = launch_learner(over(one, **parallel), timeout_s=400.0)
    # another cut into passes, too
    wide = section.model_copy(update={"micro_batch_tokens": 100})
    yield many, replace(one, section=wide).build(), head
    many.close()


def score(learner: Learner, batch: Batch, head: HeadKind) -> Tensor:
    if head == "value":
        return torch.cat(learner.values(batch))
    return learner.logprobs(batch)[batch.mask]


def count_different(many: Learner, one: Learner, head: HeadKind, seed: int) -> int:
    """Log-probabilities or values that differ in at least one bit."""
    batches = [ragged(LENGTHS, seed, sampling) for sampling in SAMPLINGS]
    return sum(
        int((score(many, batch, head) != score(one, batch, head)).sum()) for batch in batches
    )


def test_exact_learner_over_ranks_scores_with_bits_of_one_process(
    trio: tuple[MeshLearner, Learner, HeadKind], tmp_path: Path
) -> None:
    many, one, head = trio
    assert count_different(many, one, head, seed=1) == 0
    loss = SquaredError() if head == "value" else CrossEntropyLoss()
    for seed in range(2):
        train(many, ragged(LENGTHS, seed), loss)
    many.save(tmp_path)
    assert many.poll_save(wait=True)
    one.load(tmp_path)
    assert count_different(many, one, head, seed=2) == 0
    name, weight = next(iter(one.weights()))
    with torch.no_grad():
        weight.copy_(weight.nextafter(weight + 1))
    assert count_different(many, one, head, seed=2), f"a changed {name} has gone unseen"
