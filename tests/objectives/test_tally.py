"""When a bound on the mean of e^|Δ| counts as broken: by an error of every token at once, by few
outliers never.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lockstep.objectives.tally import CAP, MismatchTally

FP32, BF16 = 1.001, 1.05


def tally(delta_N: Tensor, lengths: list[int]) -> MismatchTally:
    everything = torch.ones_like(delta_N, dtype=torch.bool)
    return MismatchTally.from_logprobs(
        delta_N, torch.zeros_like(delta_N), everything, torch.tensor(lengths)
    )


def test_mismatch_mean_and_standard_error_match_ratio_estimator() -> None:
    torch.manual_seed(0)
    lengths = [3, 1, 7, 4, 9]
    delta = torch.randn(sum(lengths), dtype=torch.float64)
    parts = torch.split(delta.abs().clamp(max=CAP).expm1(), lengths)
    m = sum(float(part.sum()) for part in parts) / sum(lengths)
    squares = sum(float(part.sum() - m * len(part)) ** 2 for part in parts)
    found = tally(delta, lengths)
    assert found.mean == pytest.approx(1 + m, rel=1e-6)
    assert found.standard_error == pytest.approx(
        math.sqrt(squares * 5 / 4) / sum(lengths), rel=1e-5
    )


@pytest.mark.parametrize(
    ("ratio", "broken"), [(1.01, True), (1.0011, True), (1.0009, False), (1.0, False)]
)
def test_same_ratio_on_every_token_breaks_fp32_bound_only_above_it(
    ratio: float, broken: bool
) -> None:
    assert tally(torch.full((40,), math.log(ratio)), [10] * 4).exceeds_bound(FP32) is broken


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_log_probability_gap_breaks_any_bound(value: float) -> None:
    delta = torch.zeros(10_000)
    delta[7] = value
    found = tally(delta, [10_000])
    assert found.unknown == 1
    assert found.exceeds_bound(1e9)


def test_mismatch_tally_counts_only_masked_tokens() -> None:
    mask = torch.tensor([False, True, True, False])
    found = MismatchTally.from_logprobs(
        torch.tensor([math.nan, 0.0, 0.0, 9.0]), torch.zeros(4), mask, torch.tensor([3, 1])
    )
    assert (found.responses, found.tokens, found.unknown, found.mean) == (1, 2, 0, 1.0)
    nothing = MismatchTally.from_logprobs(
        torch.zeros(2), torch.zeros(2), torch.zeros(2, dtype=torch.bool), torch.tensor([2])
    )
    assert nothing == MismatchTally()
    assert not nothing.exceeds_bound(FP32)
