"""How pairs are cut into micro-batches and ordered changes neither loss nor gradient, and tears
none apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import OPTIMIZER, SECTION, ragged
from torch import Tensor

from lockstep.cluster.specs import LearnerSpec
from lockstep.config import DType
from lockstep.core.batch import Batch
from lockstep.learners.rank import RankLearner
from lockstep.losses.preference import Preference

LENGTHS = (7, 12, 19, 4, 23, 9, 5, 30, 11, 6)
LOSS = Preference("rpo_bwd_kl", beta=0.5, sft_coef=0.1)
FOUND = settings(max_examples=12)


def learner(folder: Path, budget: int, dtype: DType = "fp32") -> RankLearner:
    section = SECTION.model_copy(update={"micro_batch_tokens": budget, "dtype": dtype})
    return LearnerSpec(str(folder), "logits", section, OPTIMIZER, 0).build()


def pairs() -> Batch:
    batch = ragged(LENGTHS)
    mask = batch.mask | (batch.position == 1)  # nobody without an answer
    draw = torch.Generator().manual_seed(1)
    reference = -3.0 + torch.randn(mask.numel(), generator=draw) * mask
    scores = (
        torch.rand(len(batch), generator=draw).view(-1, 2).sort(descending=True).values.flatten()
    )
    return replace(
        batch.with_columns({"mask": mask, "ref_logprob": reference}, {"score": scores}),
        group_size=2,
    )


def learned(model: RankLearner, batch: Batch) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and gradients of one batch; the learner is then as it was."""
    metrics = model.forward_backward(batch, LOSS).floats()
    gradients = {
        name: p.grad.clone() for name, p in model.model.named_parameters() if p.grad is not None
    }
    model.model.zero_grad()
    return metrics, gradients


@pytest.fixture(scope="module")
def folder(models: Callable[..., Path]) -> Path:
    return models("qwen3")


@pytest.fixture(scope="module")
def whole(folder: Path) -> tuple[dict[str, float], dict[str, Tensor]]:
    return learned(learner(folder, 100_000), pairs())


def assert_same(
    found: tuple[dict[str, float], dict[str, Tensor]],
    whole: tuple[dict[str, float], dict[str, Tensor]],
):
    assert found[0] == pytest.approx(whole[0], rel=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in whole[1].values())
    for name, gradient in whole[1].items():
        torch.testing.assert_close(found[1][name], gradient, atol=2e-6 * largest, rtol=0.0)


@FOUND
@given(st.integers(1, 120), st.permutations(range(5)))
def test_preference_loss_and_gradient_do_not_depend_on_micro_batching_or_order(
    folder: Path, whole: tuple[dict[str, float], dict[str, Tensor]], budget: int, order: list[int]
) -> None:
    batch = pairs()
    assert_same(learned(learner(folder, budget), batch.select(batch.rows_of(order))), whole)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_initial_policy_and_reference_log_probabilities_are_bit_identical(
    folder: Path, budget: int, dtype: DType
) -> None:
    """Reference and policy cut the batch alike, so that also what a product rounds is the same."""
    policy, reference = (learner(folder, budget, dtype) for _ in range(2))
    batch = pairs()
    batch = batch.with_columns({"ref_logprob": reference.logprobs(batch)})
    metrics = policy.forward_backward(batch, Preference("dpo", beta=0.1)).floats()
    assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["rewards_all_mean"] == metrics["rewards_all_std"] == 0.0


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 3), st.data())
def test_batch_select_and_split_keep_groups_together(
    lengths: list[int], size: int, data: st.DataObject
) -> None:
    batch = Batch(
        torch.arange(size * sum(lengths)),
        torch.tensor(lengths).repeat_interleave(size),
        group_size=size,
    )
    assert batch.group_lengths.tolist() == [size * length for length in lengths]
    groups = data.draw(st.permutations(range(len(lengths))))
    some = batch.select(batch.rows_of(groups))
    assert some.group_size == size
    assert some.lengths.tolist() == [lengths[group] for group in groups for _ in range(size)]
    if size > 1:
        with pytest.raises(ValueError, match="must stay together"):
            batch.select([*range(1, len(batch)), 0])
        with pytest.raises(ValueError, match="must stay together"):
            batch.split(1)
