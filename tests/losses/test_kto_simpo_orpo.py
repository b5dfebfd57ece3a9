"""KTO, SimPO and ORPO from tokens to sums: by hand in float64, and with rows left out."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from lockstep.core.batch import Batch
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.kto import KTOLoss
from lockstep.losses.preference import ORPOLoss, SimPOLoss

LOSSES: list[Loss] = [KTOLoss(0.5, (1.0, 2.0), 0.25), SimPOLoss(2.0, 0.5, 0.1), ORPOLoss(0.5)]
LOGPROBS = ((-1.0, -2.0), (-0.5,), (-3.0, -1.0, -2.0), (-1.5, -0.5))
"""Log-probabilities of the answers of four sequences, each after a prompt of one token."""
MEANS = [sum(answer) / len(answer) for answer in LOGPROBS]
# of a reference that says −1 of every token
RATIOS = [sum(answer) + len(answer) for answer in LOGPROBS]


def outputs() -> tuple[Outputs, Batch]:
    lengths = torch.tensor([1 + len(answer) for answer in LOGPROBS])
    mask = torch.cat([torch.tensor([False] + [True] * len(answer)) for answer in LOGPROBS])
    logprob = torch.tensor([x for answer in LOGPROBS for x in (0.0, *answer)], dtype=torch.float64)
    columns = {"mask": mask, "ref_logprob": torch.where(mask, -1.0, 0.0).double()}
    sample = {"desirable": torch.tensor([True, False, False, True])}
    batch = Batch(torch.zeros(len(mask), dtype=torch.int64), lengths, columns, sample, group_size=2)
    return Outputs(logprob=logprob.requires_grad_()), batch


def soft(x: float) -> float:
    """−log σ(x)."""
    return math.log1p(math.exp(-x))


def odds(mean: float) -> float:
    return math.log(math.exp(mean) / (1 - math.exp(mean)))


def test_kto_simpo_and_orpo_losses_match_hand_computed_sums() -> None:
    pairs = ((MEANS[0], MEANS[1]), (MEANS[2], MEANS[3]))
    by_hand = [
        sum(
            weight / (1 + math.exp(side * 0.5 * (ratio - 0.25)))
            for ratio, side, weight in zip(
                RATIOS, (1, -1, -1, 1), (1.0, 2.0, 2.0, 1.0), strict=True
            )
        ),
        sum(soft(2.0 * (chosen - rejected) - 0.5) - 0.1 * chosen for chosen, rejected in pairs),
        sum(0.5 * soft(odds(chosen) - odds(rejected)) - chosen for chosen, rejected in pairs),
    ]
    for loss, expected in zip(LOSSES, by_hand, strict=True):
        assert loss(*outputs())[0].item() == pytest.approx(expected, rel=1e-9)
        assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_sequence_without_trainable_tokens_keeps_gradient_and_metrics_finite(loss: Loss) -> None:
    given, batch = outputs()
    batch = batch.with_columns({"mask": batch.mask & (batch.row < 3)})
    total, metrics = loss(given, batch)
    total.backward()
    assert given.logprob is not None
    assert given.logprob.grad is not None
    assert given.logprob.grad.isfinite().all()
    assert all(math.isfinite(value) for value in metrics.floats().values())
