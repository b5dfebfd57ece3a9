"""Figures against plain loops that a reader can check by eye; bounds against binomial sums, tables
and simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.report.sweeps import student_quantile
from lockstep_doctor.columns import TokenColumns
from lockstep_doctor.statistics import TokenComparison, compute_figures, pool_comparisons
from lockstep_doctor.table.bounds import bound_rate, bound_statistic, cluster_mean, standard_errors

INF = math.inf
logprobs = st.floats(-8, 0)
sequences = st.lists(
    st.lists(st.tuples(logprobs, logprobs), min_size=1, max_size=5), min_size=2, max_size=5
)


def compared(
    rows: list[list[tuple[float, float]]], cluster: list[int] | None = None
) -> TokenComparison:
    """From (training, inference) log-probabilities of each sequence."""
    flat = [pair for row in rows for pair in row]
    return TokenComparison(
        torch.tensor([train for train, _ in flat], dtype=torch.float64),
        torch.tensor([infer for _, infer in flat], dtype=torch.float64),
        torch.tensor([len(row) for row in rows]),
        torch.tensor([i for row in rows for i in range(len(row))]),
        None if cluster is None else torch.tensor(cluster),
    )


@given(sequences)
def test_mismatch_figures_match_plain_python_formulas(
    rows: list[list[tuple[float, float]]],
) -> None:
    found = compute_figures(compared(rows))
    deltas = [[train - infer for train, infer in row] for row in rows]
    flat, n = [delta for row in deltas for delta in row], sum(map(len, deltas))
    ordered = sorted(map(abs, flat))
    weights = [math.exp(sum(row)) for row in deltas]
    expected = {
        "tokens": n,
        "sequences": len(rows),
        "token_mult_prob_error": sum(math.exp(abs(delta)) for delta in flat) / n,
        "capped_mult_prob_error": sum(math.exp(min(abs(delta), 3)) for delta in flat) / n,
        "k1": -sum(flat) / n,
        "k3": sum(math.exp(delta) - 1 - delta for delta in flat) / n,
        "mean_ratio": sum(map(math.exp, flat)) / n,
        "mean_abs": sum(map(abs, flat)) / n,
        "rms": math.sqrt(sum(delta**2 for delta in flat) / n),
        "median_abs": ordered[math.ceil(n / 2) - 1],
        "p99": ordered[math.ceil(0.99 * n) - 1],
        "p999": ordered[math.ceil(0.999 * n) - 1],
        "max_abs": ordered[-1],
        "outlier_rate_1": sum(abs(delta) > 1 for delta in flat) / n,
        "sequence_ess": sum(weights) ** 2 / sum(weight**2 for weight in weights) / len(rows),
        "support_violations_train": 0,
        "support_violations_infer": 0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert set(found) == set(expected)


def test_infinite_and_nan_logprobs_count_as_support_violations() -> None:
    rows = [
        [(-1.0, -1.1), (-INF, -2.0)],
        [(-1.0, -1.2), (math.nan, -0.5)],
        [(-3.0, -INF), (-INF, -INF)],
    ]
    found = compute_figures(compared(rows))
    assert (found["support_violations_train"], found["support_violations_infer"]) == (3, 2)
    assert found["token_mult_prob_error"] == pytest.approx((math.exp(0.1) + math.exp(0.2)) / 2)
    assert found["capped_mult_prob_error"] == pytest.approx(
        (math.exp(0.1) + math.exp(0.2) + 3 * math.exp(3) + math.exp(0)) / 6
    )
    assert found["mean_ratio"] == pytest.approx((math.exp(0.1) + math.exp(0.2)) / 4), (
        "a weight of 0 is a weight"
    )
    assert not any(math.isnan(value) for value in found.values())


def test_huge_logprob_differences_give_finite_figures() -> None:
    found = compute_figures(compared([[(-1.0, -900.0), (-1.0, -1.0)], [(-900.0, -1.0)]]))
    assert all(math.isfinite(value) for value in found.values())
    assert found["max_abs"] == 899.0


def test_figures_without_any_token_raise_error() -> None:
    with pytest.raises(ValueError, match="no token to compare"):
        compute_figures(compared([[], []]))


def test_comparison_keeps_only_tokens_with_mask_one() -> None:
    mask = torch.tensor([False, True, True, False, True])
    found = TokenColumns(
        -torch.arange(5.0), -torch.arange(5.0) - 1, mask, torch.tensor([0, 3, 5])
    ).compare_sides()
    assert found.train.tolist() == [-1.0, -2.0, -4.0]
    assert found.delta.tolist() == [1.0, 1.0, 1.0]
    assert (found.lengths.tolist(), found.position.tolist()) == ([2, 1], [1, 2, 1])
    assert (found.row_index.tolist(), found.token_index.tolist()) == ([0, 0, 1], [1, 2, 1])


def test_pooling_cells_does_not_merge_their_clusters() -> None:
    one, two = (
        compared([[(-1.0, -1.0)], [(-1.0, -1.0)]], cluster=[5, 5]),
        compared([[(-2.0, -1.0)] * 2]),
    )
    both = pool_comparisons([one, two])
    assert both.sum_clusters(both.delta).tolist() == [[0.0, 2.0], [-2.0, 2.0]]
    assert both.lengths.tolist() == [1, 1, 2]


def binomial(n: int, k: int, rate: float) -> float:
    """P(≤ k) of n."""
    return sum(math.comb(n, i) * rate**i * (1 - rate) ** (n - i) for i in range(k + 1))


def trials(k: int, n: int) -> Tensor:
    """One hit or none in each of n clusters."""
    return torch.stack([(torch.arange(n) < k).double(), torch.ones(n, dtype=torch.float64)], 1)


@pytest.mark.parametrize(("n", "k"), [(10, 0), (10, 10), (40, 17), (900, 1)])
@pytest.mark.parametrize("level", [0.05, 0.01, 1e-4])
def test_exact_rate_bounds_match_binomial_tail_probability(n: int, k: int, level: float) -> None:
    # of one cluster no variance is known, so all trials count
    together = trials(k, n).sum(0, keepdim=True)
    found = bound_rate(together, level, level)
    assert (
        found.low == 0
        if k == 0
        else 1 - binomial(n, k - 1, found.low) == pytest.approx(level, rel=1e-6)
    )
    assert (
        found.high == 1 if k == n else binomial(n, k, found.high) == pytest.approx(level, rel=1e-6)
    )


def test_clustered_hits_widen_rate_bounds() -> None:
    scattered = bound_rate(torch.tensor([[1.0, 100.0]] * 32), 0.01, 0.01)
    together = bound_rate(torch.tensor([[32.0, 100.0]] + [[0.0, 100.0]] * 31), 0.01, 0.01)
    assert (scattered.value, together.value) == pytest.approx((0.01, 0.01))
    assert together.high > 3 * scattered.high
    assert together.low < scattered.low
    none = bound_rate(torch.tensor([[0.0, 100.0]] * 32), 0.01, 0.01)
    assert none == bound_rate(trials(0, 3200), 0.01, 0.01)


@pytest.mark.parametrize(
    ("freedom", "two_sided", "t"),
    [
        (7, 0.01, 3.4995),
        (1000, 0.05, 1.9623),
        (15, 0.002, 3.7328),
        (1, 0.05, 12.7062),
    ],
)
def test_student_t_quantiles_match_published_tables(
    freedom: int, two_sided: float, t: float
) -> None:
    assert student_quantile(two_sided / 2, freedom) == pytest.approx(t, rel=5e-5)
    assert student_quantile(1 - two_sided / 2, freedom) == pytest.approx(-t, rel=5e-5)


def test_bias_is_measured_in_standard_errors_beyond_limit() -> None:
    # 1, with an error of 0.1/√999
    totals = torch.tensor([[0.9, 1.0], [1.1, 1.0]] * 500, dtype=torch.float64)
    assert standard_errors(totals, 0.99) == pytest.approx(0.01 / (0.1 / math.sqrt(999)), rel=1e-2)
    assert standard_errors(totals * torch.tensor([-1.0, 1.0]), 0.99) == -standard_errors(
        totals, 0.99
    )
    assert standard_errors(totals, 1.01) == 0
    assert 0 < standard_errors(totals[:8], 0.9) < 0.1 / (0.1 / math.sqrt(7)), (
        "few clusters are worth less"
    )
    assert standard_errors(totals[:1], 0.0) == 0, "one says nothing"
    assert standard_errors(torch.ones(8, 2), 0.5) > 4, "equal ones all"


def noise(clusters: int) -> Tensor:
    """Healthy rounding: sequences of different spread, tokens of different surprise."""
    scale = torch.exp(0.3 * torch.randn(clusters, 1, dtype=torch.float64))
    size = 0.03 * scale * torch.rand(clusters, 100).square() * torch.randn(clusters, 100).abs()
    return torch.stack([size.exp().sum(1), torch.full((clusters,), 100.0)], 1).double()


def spikes(clusters: int) -> Tensor:
    """With one spike of about a nat in 200 tokens."""
    size = torch.randn(clusters, 100).abs() * torch.where(
        torch.rand(clusters, 100) < 5e-3, 1.0, 0.01
    )
    return torch.stack([size.clamp(max=3).exp().sum(1), torch.full((clusters,), 100.0)], 1).double()


@pytest.mark.parametrize(
    ("draw", "clusters", "most"),
    [(noise, 8, 0.06), (noise, 32, 0.035), (spikes, 16, 0.06), (spikes, 64, 0.04)],
)
def test_bounds_cover_though_clusters_are_few_and_skewed(
    draw: Callable[[int], Tensor], clusters: int, most: float
) -> None:
    """A bound misses the truth in about 1 % of 500 draws; heavy tails cost some."""
    torch.manual_seed(0)
    many = draw(200_000).sum(0)
    truth, runs = float(many[0] / many[1]), 500
    found = [bound_statistic(draw(clusters), cluster_mean, 0.01, 0.01) for _ in range(runs)]
    assert sum(one.high < truth for one in found) / runs <= most
    assert sum(one.low > truth for one in found) / runs <= 0.025


def test_one_cluster_gives_infinite_bounds_and_equal_clusters_exact_ones() -> None:
    alone = bound_statistic(
        torch.tensor([[101.0, 100.0]], dtype=torch.float64), cluster_mean, 0.01, 0.01
    )
    assert (alone.low, alone.high) == (-INF, INF)
    equal = bound_statistic(
        torch.tensor([[101.0, 100.0]] * 8, dtype=torch.float64), cluster_mean, 0.01, 0.01
    )
    assert (equal.low, equal.high) == (1.01, 1.01)
