"""Exact learners over ranks: the bits of one process (level E4), before and after an update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import OPTIMIZER, SECTION, over, ragged
from twins import Models, demonstrations

from lockstep.cluster.learner_group import MeshLearner, launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.core.types import SamplingParams
from lockstep.learners.base import Learner, train

pytestmark = pytest.mark.needs("gloo")
LENGTHS = (7, 1, 19, 47, 33, 2, 12, 9, 16, 17, 41)
SAMPLINGS = (None, SamplingParams(8, temperature=0.7, top_p=0.8, repetition_penalty=1.2))
LAYOUTS = [
    pytest.param(({"dp": 2}, "qwen3"), id="dp2"),
    pytest.param(({"dp_replicate": 2}, "llama"), id="2copies", marks=pytest.mark.full),
    pytest.param(({"dp": 2, "dp_replicate": 2}, "qwen2 tied"), id="2copiesdp2", marks=pytest.mark.proof),
]  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def learners(
    request: pytest.FixtureRequest, models: Models
) -> Iterator[tuple[MeshLearner, Learner]]:
    parallel, architecture = request.param
    section = SECTION.compute_exactly()
    one = LearnerSpec(str(models(architecture)), "logits", section, OPTIMIZER, seed=0)
    many = launch_learner(over(one, **parallel), timeout_s=400.0)
    # another cut into passes, too
    wide = section.model_copy(update={"micro_batch_tokens": 100})
    yield many, replace(one, section=wide).build()
    many.close()


def count_different(many: Learner, one: Learner, seed: int) -> int:
    """Log-probabilities that differ in at least one bit."""
    found = 0
    for sampling in SAMPLINGS:
        batch = ragged(LENGTHS, seed, sampling)
        theirs, ours = (learner.logprobs(batch)[batch.mask] for learner in (many, one))
        assert theirs.abs().min() > 0
        found += int((theirs != ours).sum())
    return found


def test_exact_learner_over_ranks_scores_with_bits_of_one_process(
    learners: tuple[MeshLearner, Learner], tmp_path: Path
) -> None:
    many, one = learners
    assert count_different(many, one, seed=1) == 0
    for batch, loss in demonstrations(2):
        train(many, batch, loss)
    many.save(tmp_path)
    assert many.poll_save(wait=True)
    one.load(tmp_path)
    assert count_different(many, one, seed=2) == 0
    name, weight = next(iter(one.weights()))
    with torch.no_grad():
        weight.copy_(weight.nextafter(weight + 1))
    assert count_different(many, one, seed=2), f"a changed {name} has gone unseen"
