"""The verdict: which clause says what, and how often it is wrong about agreement and disagreement
that are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lockstep.core.types import SamplingParams
from lockstep_doctor.statistics import TokenComparison
from lockstep_doctor.table.options import DoctorLimits
from lockstep_doctor.table.verdict import CellJudgment, judge_cell, judge_tails

LIMITS = DoctorLimits()
GREEDY, NUCLEUS = SamplingParams(8, temperature=0.0), SamplingParams(8, top_p=0.9)


def drawn(sequences: int, tokens: int, noise: float, shift: float = 0.0) -> TokenComparison:
    """Rounding noise about as large as a token surprises, larger in some sequences; E[e^Δ] =
    e^shift.
    """
    surprise = -torch.rand(sequences, tokens, dtype=torch.float64).log()
    scale = noise * (surprise / 2).clamp(max=1.5) * torch.exp(0.3 * torch.randn(sequences, 1))
    delta = scale * torch.randn(sequences, tokens) - scale.square() / 2 + shift
    lengths = torch.full((sequences,), tokens)
    return TokenComparison(
        (delta - surprise).flatten(),
        -surprise.flatten(),
        lengths,
        torch.arange(tokens).repeat(sequences),
    )


def floor_of(compared: TokenComparison, noise: float) -> Tensor:
    """What rounding makes of other runs on the same tokens."""
    size = (-compared.infer / 2).clamp(max=1.5)
    return noise * size * torch.randn(size.numel()).abs()


def verdict(
    noise: float = 0.02,
    shift: float = 0.0,
    *,
    sequences: int = 32,
    sampling: SamplingParams | None = None,
    alter: Callable[[TokenComparison], TokenComparison] = lambda healthy: healthy,
) -> CellJudgment:
    torch.manual_seed(3)
    compared = drawn(sequences, 400, noise, shift)
    return judge_cell(
        {"infer": (alter(compared), floor_of(compared, 0.02))}, LIMITS, sampling=sampling
    )


def failed(judgment: CellJudgment) -> set[str]:
    return {name for name, clause in judgment.clauses.items() if clause.verdict == "FAIL"}


def test_mismatch_within_noise_floor_passes() -> None:
    found = verdict()
    assert found.verdict == "PASS", found.reasons
    assert found.low < found.metric < found.high < 1.03
    assert "tokens of the inference side: mean e^|Δ| is 1.0" in " ".join(found.reasons)


def test_mismatch_above_noise_floor_fails_below_absolute_limit() -> None:
    found = verdict(noise=0.07)
    assert found.verdict == "FAIL"
    assert "infer.mismatch" in failed(found)
    assert found.metric < 1.05
    assert "beyond the limit" in found.reasons[0]


def test_absolute_limit_fails_mismatch_despite_large_noise_floor() -> None:
    compared = drawn(32, 400, 0.2)
    found = judge_cell({"infer": (compared, floor_of(compared, 0.2))}, LIMITS)
    assert "infer.mult_prob_error" in failed(found)
    assert found.clauses["infer.mismatch"].verdict == "PASS"
    lax = judge_cell(
        {"infer": (compared, floor_of(compared, 0.2))},
        LIMITS.model_copy(update={"max_mult_prob_error": 1.5}),
    )
    assert "infer.mult_prob_error" not in failed(lax)


def test_mean_shift_fails_sampled_tokens_but_not_greedy_ones() -> None:
    assert failed(verdict(shift=0.008)) == {"infer.bias", "infer.ratio"}
    assert verdict(shift=0.008, sampling=GREEDY).verdict == "PASS"


def with_one(train: float) -> Callable[[TokenComparison], TokenComparison]:
    return lambda healthy: replace(
        healthy, train=healthy.train.index_fill(0, torch.tensor([77]), train)
    )


@pytest.mark.parametrize("nothing", [-math.inf, math.nan])
def test_one_impossible_token_fails_unless_the_tail_was_cut(nothing: float) -> None:
    assert failed(verdict(alter=with_one(nothing))) == {"infer.support"}
    cut = verdict(alter=with_one(nothing), sampling=NUCLEUS)
    assert cut.clauses["infer.support"].verdict == "PASS"
    assert "infer.support" not in failed(cut)


@pytest.mark.parametrize("nothing", [-math.inf, math.nan])
@pytest.mark.parametrize("sampling", [None, NUCLEUS])
def test_side_without_any_finite_logprob_fails(
    nothing: float, sampling: SamplingParams | None
) -> None:
    def alter(healthy: TokenComparison) -> TokenComparison:
        return replace(healthy, infer=torch.full_like(healthy.infer, nothing))

    torch.manual_seed(3)
    compared = drawn(32, 400, 0.02)
    found = judge_cell(
        {"infer": (alter(compared), floor_of(compared, 0.02))}, LIMITS, sampling=sampling
    )
    assert found.verdict == "FAIL"
    assert {"infer.support", "infer.outliers", "infer.sequence_ess"} <= failed(found)
    share = found.clauses["infer.sequence_ess"]
    assert (share.value, share.low, share.high) == (0.0, 0.0, 0.0)


def test_too_many_outliers_fail_though_the_mean_is_small() -> None:
    def alter(healthy: TokenComparison) -> TokenComparison:
        rare = torch.arange(healthy.train.numel()) % 250 == 0
        return replace(healthy, train=healthy.train - 1.2 * rare)

    found = verdict(alter=alter)
    assert "infer.outliers" in failed(found)
    assert "infer.mult_prob_error" not in failed(found)


def test_low_sequence_ess_fails_unless_rounding_explains_it() -> None:
    torch.manual_seed(0)
    compared = drawn(64, 400, 0.02)
    drift = torch.randn(64, dtype=torch.float64).repeat_interleave(400) * 4 / 400
    assert "infer.sequence_ess" in failed(
        judge_cell(
            {"infer": (replace(compared, train=compared.train + drift), floor_of(compared, 0.02))},
            LIMITS,
        )
    )
    long = drawn(64, 10_000, 0.02)
    found = judge_cell({"infer": (long, floor_of(long, 0.02))}, LIMITS)
    assert found.clauses["infer.sequence_ess"].value < 0.5
    assert found.verdict == "PASS", found.reasons
    assert judge_cell({"infer": (long, None)}, LIMITS).verdict == "PASS", (
        "without a floor it is unknown what length alone does"
    )


def test_few_tokens_are_inconclusive_until_cells_are_pooled() -> None:
    torch.manual_seed(0)
    cells = [drawn(32, 50, 0.02) for _ in range(8)]
    alone = judge_cell({"infer": (cells[0], floor_of(cells[0], 0.02))}, LIMITS)
    assert alone.verdict == "INCONCLUSIVE"
    assert len(alone.reasons) == 1
    assert "not clearly within or beyond the limit 0.001" in alone.reasons[0]
    tails = judge_tails(cells, LIMITS)
    assert (
        judge_cell({"infer": (cells[0], floor_of(cells[0], 0.02))}, LIMITS, tails=tails).verdict
        == "PASS"
    )
    few = judge_tails(cells[:1], LIMITS)
    assert (
        judge_cell({"infer": (cells[0], floor_of(cells[0], 0.02))}, LIMITS, tails=few).verdict
        == "INCONCLUSIVE"
    )


@pytest.mark.parametrize(("hits", "expected"), [(9, "INCONCLUSIVE"), (3, "PASS")])
def test_cell_above_outlier_limit_does_not_pass_by_pooling(hits: int, expected: str) -> None:
    torch.manual_seed(0)
    bad = drawn(30, 100, 0.02)
    beyond = torch.arange(hits) * (3000 // hits)
    bad = replace(
        bad, train=bad.train.index_add(0, beyond, torch.full((hits,), -1.2, dtype=torch.float64))
    )
    tails = judge_tails([bad, *(drawn(100, 400, 0.02) for _ in range(2))], LIMITS)
    assert tails.verdict == "PASS"
    found = judge_cell({"infer": (bad, None)}, LIMITS, cells=3, tails=tails).clauses[
        "infer.outliers"
    ]
    assert found.verdict == expected
    assert found.value == pytest.approx(tails.value if expected == "PASS" else 0.003)


def test_fewer_than_8_sequences_can_fail_but_not_pass() -> None:
    few, enough = (
        (drawn(sequences, 400, 0.0), torch.zeros(400 * sequences)) for sequences in (7, 8)
    )
    assert (
        judge_cell({"infer": (few[0], few[1])}, LIMITS).clauses["infer.mismatch"].verdict
        == "INCONCLUSIVE"
    )
    assert (
        judge_cell({"infer": (enough[0], enough[1])}, LIMITS).clauses["infer.mismatch"].verdict
        == "PASS"
    )
    assert verdict(noise=0.3, sequences=7).verdict == "FAIL"


def test_responses_to_one_prompt_count_as_one_cluster() -> None:
    def alter(healthy: TokenComparison) -> TokenComparison:
        return replace(healthy, cluster=torch.arange(32) // 8)

    assert verdict(alter=alter).clauses["infer.mismatch"].verdict == "INCONCLUSIVE"


def test_verdict_covers_samples_of_both_sides() -> None:
    torch.manual_seed(0)
    healthy, broken = drawn(32, 400, 0.02), drawn(32, 400, 0.02)
    broken = replace(broken, train=broken.train + 0.1)
    floor = floor_of(healthy, 0.02)
    found = judge_cell(
        {"infer": (healthy, floor), "train": (broken.swap_sides(), floor_of(broken, 0.02))}, LIMITS
    )
    assert failed(found) == {"train.mismatch", "train.bias", "train.ratio", "train.mult_prob_error"}
    assert "tokens of the training side" in found.reasons[0]
    noisy = drawn(32, 400, 0.3)
    mirrored = judge_cell(
        {"infer": (noisy, 0 * floor), "train": (noisy.swap_sides(), 0 * floor)}, LIMITS
    )
    assert not failed(mirrored) & {"infer.bias", "train.bias", "infer.ratio", "train.ratio"}
    with pytest.raises(ValueError, match=r"one \|Δ\| for each of the 12800 tokens"):
        judge_cell({"infer": (healthy, floor[1:])}, LIMITS)


def test_identical_and_fp32_close_sides_pass_with_zero_noise_floor() -> None:
    torch.manual_seed(0)
    healthy = drawn(32, 400, 1e-5)
    zero = torch.zeros(healthy.train.numel())
    assert (
        judge_cell({"infer": (replace(healthy, train=healthy.infer), zero)}, LIMITS).verdict
        == "PASS"
    )
    assert judge_cell({"infer": (healthy, zero)}, LIMITS).verdict == "PASS"
    assert failed(judge_cell({"infer": (drawn(32, 400, 1e-3), zero)}, LIMITS)) == {"infer.mismatch"}


def test_more_cells_widen_lower_bound_but_not_upper_bound() -> None:
    torch.manual_seed(5)
    compared = drawn(32, 400, 0.0545)
    one, many = (
        judge_cell({"infer": (compared, floor_of(compared, 0.02))}, LIMITS, cells)
        for cells in (1, 1000)
    )
    assert many.low < one.low < one.high == pytest.approx(many.high, rel=1e-3)
    limits = LIMITS.model_copy(update={"max_mult_prob_error": (one.low + many.low) / 2})
    assert judge_cell({"infer": (compared, None)}, limits).verdict == "FAIL"
    assert judge_cell({"infer": (compared, None)}, limits, 1000).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("noise", "shift", "wrong"),
    [
        (0.02, 0.0, "FAIL"),
        (0.0, 0.0, "FAIL"),
        (0.055, 0.0, "FAIL"),
        (0.075, 0.0, "PASS"),
        (0.02, 0.012, "PASS"),
    ],
)
def test_simulated_verdicts_are_wrong_at_most_once_in_60_runs(
    noise: float, shift: float, wrong: str
) -> None:
    """Healthy: at most the thrice of a floor of 0.02; sequences are correlated inside."""
    torch.manual_seed(0)
    runs, mistakes = 60, 0
    for _ in range(runs):
        compared = drawn(32, 150, noise, shift)
        mistakes += (
            judge_cell({"infer": (compared, floor_of(compared, 0.02))}, LIMITS).verdict == wrong
        )
    assert mistakes <= 1
