"""Distillation: divergences against sums over the whole vocabulary in float64, and the loss on a
ragged batch.
"""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.types import DivergenceKind
from lockstep.losses.base import Outputs
from lockstep.losses.distill import Distillation
from lockstep.objectives.distill import LOG_OUTSIDE

PLACES, VOCABULARY, NAMED = 5, 9, 4
KINDS = ("forward", "reverse", "mixed", "jsd")


@pytest.fixture
def logits() -> tuple[Tensor, Tensor]:
    """Of student and teacher, float64 [M, V]."""
    draw = torch.Generator().manual_seed(3)
    student, teacher = (
        2 * torch.randn(PLACES, VOCABULARY, generator=draw, dtype=torch.float64) for _ in range(2)
    )
    return student, teacher


def brute(kind: str, student_V: Tensor, teacher_V: Tensor, weight: float) -> Tensor:
    """Token by token, from distributions over the whole vocabulary."""
    total = student_V.new_zeros(())
    for s, t in zip(student_V, teacher_V, strict=True):
        p, q = s.exp(), t.exp()
        mixture = weight * q + (1 - weight) * p
        forward, reverse = q * (t - s), p * (s - t)
        total = (
            total
            + {
                "forward": forward,
                "reverse": reverse,
                "mixed": weight * forward + (1 - weight) * reverse,
                "jsd": weight * q * (t - mixture.log()) + (1 - weight) * p * (s - mixture.log()),
            }[kind]
        )
    return total


def scored(
    kind: DivergenceKind, logits_MV: Tensor, teacher_MV: Tensor, k: int | None, outside: bool
) -> Tensor:
    """What the loss makes of the teacher's k likeliest tokens; None: of all, without a list of
    them.
    """
    own_MV, all_MV = logits_MV.log_softmax(-1), teacher_MV.log_softmax(-1)
    columns = {"mask": torch.ones(len(own_MV)).bool(), "teacher_logprob": all_MV}
    batch = Batch(torch.zeros(len(own_MV), dtype=torch.int64), torch.tensor([len(own_MV)]), columns)
    if k is None:
        return Distillation(kind, 0.3, outside)(Outputs(top_logprob=own_MV), batch)[0]
    teacher_MK, token_MK = all_MV.topk(k)
    batch = batch.with_columns({"top_token": token_MK, "teacher_logprob": teacher_MK})
    entropy_M = -(own_MV.exp() * own_MV).sum(-1)
    named_MK, first_M = own_MV.gather(1, token_MK), own_MV.argmax(-1)
    outputs = Outputs(
        logprob=own_MV[:, 0], entropy=entropy_M, top_logprob=named_MK, first_token=first_M
    )
    return Distillation(kind, 0.3, outside)(outputs, batch)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [None, VOCABULARY, NAMED])
@pytest.mark.parametrize("outside", [False, True])
def test_distillation_loss_and_gradient_match_float64_vocabulary_sums(
    logits: tuple[Tensor, Tensor], kind: DivergenceKind, k: int | None, outside: bool
) -> None:
    student, teacher = logits[0].requires_grad_(), logits[1].log_softmax(-1)
    total = scored(kind, student, logits[1], k, outside)
    (gradient,) = torch.autograd.grad(total, student)
    expected = student.new_zeros(())
    for own, theirs in zip(student, teacher, strict=True):
        named = theirs.topk(k or VOCABULARY).indices
        if outside:  # the teacher has e^-100 for the others
            said = torch.full_like(theirs, LOG_OUTSIDE).scatter(
                0, named, theirs[named].log_softmax(-1)
            )
            expected = expected + brute(kind, own.log_softmax(-1), said, 0.3)
        else:
            expected = expected + brute(
                kind, own[named].log_softmax(-1), theirs[named].log_softmax(-1), 0.3
            )
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        gradient, torch.autograd.grad(expected, student)[0], rtol=1e-7, atol=1e-9
    )


def test_distillation_loss_and_metrics_count_only_masked_tokens() -> None:
    mask = torch.tensor([False, True, True, False])
    own = torch.tensor([[0.7, 0.1], [0.7, 0.1], [0.2, 0.6], [0.5, 0.5]]).log().requires_grad_()
    teacher = torch.tensor([[0.5, 0.5], [0.7, 0.1], [0.8, 0.2], [0.1, 0.9]]).log()
    columns = {
        "mask": mask,
        "top_token": torch.tensor([5, 7]).expand(4, 2),
        "teacher_logprob": teacher,
    }
    batch = Batch(torch.zeros(4, dtype=torch.int64), torch.tensor([4]), columns)
    entropy = torch.tensor([0.0, 0.8, 0.6, 0.0])
    loss = pickle.loads(pickle.dumps(Distillation("forward")))
    first = torch.tensor([5, 5, 7, 5])
    total, metrics = loss(
        Outputs(logprob=own[:, 0], entropy=entropy, top_logprob=own, first_token=first), batch
    )
    assert total.item() == pytest.approx(0.8 * math.log(0.8 / 0.25) + 0.2 * math.log(0.2 / 0.75))
    assert metrics.floats() == pytest.approx(
        {
            "loss": total.item() / 2,
            "entropy": 0.7,
            "named_by_teacher": 0.8,
            "same_first_choice": 0.5,
        }
    )
    total.backward()
    assert own.grad is not None
    assert (own.grad[~mask] == 0).all()
