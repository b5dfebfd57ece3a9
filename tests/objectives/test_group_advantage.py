"""Advantages within groups, against loops in float64, and what responses without a verdict may not
touch.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from lockstep.core.types import BaselineKind, ScaleRewards
from lockstep.objectives.group import group_advantage

NAN = float("nan")
SCORES = [1.0, 0.0, 0.5, NAN, 2.0, NAN, NAN, NAN, 1.0, 1.0, 1.0, 1.0]
GROUP = 4


def plain(baseline: BaselineKind, scale: ScaleRewards) -> list[float]:
    """Group by group, response by response."""
    groups = [SCORES[start : start + GROUP] for start in range(0, len(SCORES), GROUP)]
    judged = [score for score in SCORES if score == score]
    found = []
    for group in groups:
        there = [score for score in group if score == score]
        for i, score in enumerate(group):
            others = [other for j, other in enumerate(group) if j != i and other == other]
            if score != score or (baseline != "none" and not others):
                found.append(0.0)
                continue
            base = {
                "mean": statistics.fmean(there),
                "leave_one_out": statistics.fmean(others or [0.0]),
                "none": 0.0,
            }
            spread = {
                "group": (statistics.stdev(there) if len(there) > 1 else 0.0) + 1e-4,
                "batch": statistics.stdev(judged) + 1e-4,
                "others": statistics.stdev(others) + 1e-6 if len(set(others)) > 1 else 1.0,
                "none": 1.0,
            }
            found.append((score - base[baseline]) / spread[scale])
    return found


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "none"])
@pytest.mark.parametrize("scale", ["group", "others", "batch", "none"])
def test_group_advantage_matches_per_response_float64_loop(
    baseline: BaselineKind, scale: ScaleRewards
) -> None:
    scores = torch.tensor(SCORES)
    found, _ = group_advantage(scores, scores.isfinite(), GROUP, baseline=baseline, scale=scale)
    assert found.tolist() == pytest.approx(plain(baseline, scale), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group", "others", "batch", "none"])
def test_equal_scores_in_group_give_advantage_of_exactly_0(
    baseline: BaselineKind, scale: ScaleRewards
) -> None:
    """To the last bit: Adam makes a whole step of a rounding error."""
    for size in (2, 3, 7, 8, 48):
        for score in (0.1, 0.3, 0.7, -123.4, 1e8 / 3):
            every = torch.full((2 * size,), score)
            some = torch.cat([every[:size], torch.arange(size) / 3])
            for scores in (every, some):
                found, _ = group_advantage(
                    scores, scores.isfinite(), size, baseline=baseline, scale=scale
                )
                assert found[:size].tolist() == [0.0] * size, (size, score)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_advantage_slope_is_inverse_deviation_and_0_for_uncompared_responses(
    scale: ScaleRewards,
) -> None:
    scores = torch.tensor(SCORES)
    _, slope = group_advantage(scores, scores.isfinite(), GROUP, baseline="mean", scale=scale)
    judged = [score for score in SCORES if score == score]
    spread = {
        "group": statistics.stdev([1.0, 0.0, 0.5]) + 1e-4,
        "batch": statistics.stdev(judged) + 1e-4,
        "none": 1.0,
    }
    assert slope[:3].tolist() == pytest.approx([1 / spread[scale]] * 3, rel=1e-5)
    assert slope[3:8].tolist() == [0.0] * 5, (
        "one of them is alone in its group, the others were not judged"
    )


@pytest.mark.parametrize("missing", [0.0, -7.0, float("inf"), NAN])
def test_response_without_verdict_does_not_change_other_advantages(missing: float) -> None:
    options: Any = {"baseline": "mean", "scale": "batch"}
    scores, judged = (
        torch.tensor([1.0, missing, 3.0, 2.0, 5.0, 8.0]),
        torch.tensor([1, 0, 1, 1, 1, 1]).bool(),
    )
    found, _ = group_advantage(scores, judged, 3, **options)
    alone, _ = group_advantage(scores.nan_to_num(9.0, 9.0), judged, 3, **options)
    assert torch.equal(found, alone)
    assert found[1] == 0.0
