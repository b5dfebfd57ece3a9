"""Verdict on two sides: PASS if they agree with confidence, FAIL if they differ with confidence,
INCONCLUSIVE if more data is needed.

A cell passes if every clause passes, and fails if one clause fails. Disagreement is the null
hypothesis: a clause passes if the far bound of its figure is within the limit, and fails if the
near bound is beyond it.

Far bounds use the level of the whole table: the table passes only if every cell does, so a wrong
pass is no more likely than in a single bad cell (an intersection-union test, Berger 1982). Near
bounds split the level among cells, sides and bounded figures (Bonferroni), since each is one more
chance to fail wrongly.

Rare tokens are an exception: a cell too small to bound them passes if the bound over all cells of
its pair, or of its method, is within the limit, and the cell's own rate is within the limit. That
certifies the rate of the pair, not of the cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lockstep.core.errors import InputError
from lockstep.core.exit_codes import BROKEN, INCONCLUSIVE, OK
from lockstep.core.types import SamplingParams
from lockstep_doctor.columns import SIDES
from lockstep_doctor.statistics import (
    CAP,
    TokenComparison,
    cap_prob_error,
    clamp_exponential,
    mult_prob_error,
    pool_comparisons,
    sequence_weights,
)
from lockstep_doctor.table.base import Side
from lockstep_doctor.table.bounds import (
    FigureBounds,
    bound_rate,
    bound_statistic,
    cluster_mean,
    standard_errors,
)
from lockstep_doctor.table.options import DoctorLimits

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
EXIT_CODES: dict[Verdict, int] = {"FAIL": BROKEN, "INCONCLUSIVE": INCONCLUSIVE, "PASS": OK}
"""Exit codes by verdict, worst first."""

DUST = 1e-4
"""Mean |Δ|, nats, that is always allowed.

Two orders of summation in fp32 differ by some 1e-6 to 1e-5 nats per token: 1e-4 leaves room for a
deep model if its floor happens to be bitwise zero. Rounding to bf16 causes a hundred times as much.
As a bias in every token, 1e-4 is 1 % of the importance weight of a response of 100 tokens.
"""
_BOUNDED = ("mismatch", "mult_prob_error", "outliers", "support", "sequence_ess")
FLOOR_FACTOR = 3.0
"""Largest ratio of the mismatch to the effect of rounding alone on the same tokens."""
OUTLIER = 1.0
"""|Δ| above which a token is an outlier, nats."""
LARGEST_BIAS = 4.0
"""Largest bias, in standard errors."""
LEAST_ESS = 0.5
"""Smallest effective share of sequences under importance weighting."""
_RARE = ("outliers", "support")  # a token without probability on one side is an outlier, too
LEAST_CLUSTERS = 8
"""Fewest clusters for valid bounds; with fewer, nothing passes."""


@dataclass(frozen=True)
class Clause:
    """One figure and its limit.

    Attributes:
        side: Side that drew the tokens.
        limit: Upper limit; a lower limit for `judge_sequence_ess`.
        what: Name of the figure in words.
    """

    name: str
    side: Side
    verdict: Verdict
    value: float
    low: float
    high: float
    limit: float
    what: str

    @property
    def sentence(self) -> str:
        """The clause in words."""
        relation = {
            "PASS": "within",
            "FAIL": "beyond",
            "INCONCLUSIVE": "not clearly within or beyond",
        }[self.verdict]
        if self.low < self.high:
            bounds = f" ({self.low:.5g} to {self.high:.5g})"
        else:
            bounds = ""
        return (
            f"tokens of the {SIDES[self.side]} side: {self.what} is {self.value:.5g}{bounds}, "
            f"{relation} the limit {self.limit:.5g}"
        )


@dataclass(frozen=True)
class CellJudgment:
    """Verdict on one cell.

    Attributes:
        metric: Mean of e^|Δ|, |Δ| counting at most `CAP`, over what the inference side drew.
        clauses: All clauses, by side and name as in `infer.mismatch`.
    """

    verdict: Verdict
    metric: float
    low: float
    high: float
    clauses: dict[str, Clause]

    @property
    def reasons(self) -> tuple[str, ...]:
        """A sentence for each clause that decided the verdict."""
        return tuple(
            clause.sentence for clause in self.clauses.values() if clause.verdict == self.verdict
        )


def judge_cell(
    drawn: Mapping[Side, tuple[TokenComparison, Tensor | None]],
    limits: DoctorLimits,
    cells: int = 1,
    sampling: SamplingParams | None = None,
    tails: Clause | None = None,
) -> CellJudgment:
    """Judges one cell.

    Args:
        drawn: For each side that drew tokens, of which the inference side is one: both sides'
            log-probabilities of these tokens, and the floor, which is the |Δ| that rounding in the
            declared types alone causes, nats [M]. If the floor is None, only limits that do not
            need it apply.
        cells: Number of cells judged together.
        sampling: Distribution that tokens were drawn from and scored under; None: temperature 1,
            all tokens.
        tails: `judge_tails` of all cells, or of the method's cells. If it passes, so does a cell
            too small to bound rare tokens whose own share is within the limit.
    """
    near_bounds = cells * len(_BOUNDED) * len(drawn)
    clauses: list[Clause] = []
    for side, (compared, floor_M) in drawn.items():
        if side == "infer":
            seen = compared
        else:
            seen = compared.swap_sides()
        clauses += _SideJudge(side, seen, floor_M, limits, near_bounds, sampling).list_clauses()
    if tails is not None and tails.verdict == "PASS":
        for number, clause in enumerate(clauses):
            is_small = clause.verdict == "INCONCLUSIVE" and clause.value <= clause.limit
            if is_small and clause.name in _RARE:
                clauses[number] = replace(tails, name=clause.name, side=clause.side)
    found = {f"{clause.side}.{clause.name}": clause for clause in clauses}
    metric = float(cap_prob_error(drawn["infer"][0].delta).mean())
    bounds = found["infer.mult_prob_error"]
    return CellJudgment(
        worst_of(clause.verdict for clause in clauses), metric, bounds.low, bounds.high, found
    )


def judge_tails(parts: Sequence[TokenComparison], limits: DoctorLimits) -> Clause:
    """The outlier clause over several cells together: 4,603 tokens without an outlier certify 1 in
    1,000 at 99 %.
    """
    return _SideJudge("infer", pool_comparisons(parts), None, limits).judge_outliers()


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst verdict; INCONCLUSIVE if there are none."""
    found = set(verdicts) or {"INCONCLUSIVE"}
    return next(verdict for verdict in EXIT_CODES if verdict in found)


@dataclass(frozen=True)
class _SideJudge:
    """Tokens that one side drew.

    Attributes:
        compared: Both sides, with the drawer as the inference side.
        near_bounds: Number of near bounds that share the level.
    """

    side: Side
    compared: TokenComparison
    floor_M: Tensor | None
    limits: DoctorLimits
    near_bounds: int = 1
    sampling: SamplingParams | None = None

    def list_clauses(self) -> list[Clause]:
        """All clauses; those that need a floor only if there is one."""
        usual = [self.judge_mult_prob_error(), self.judge_outliers(), self.judge_support()]
        if self.floor_M is None:
            return [self.judge_mismatch(None), *usual]
        if self.floor_M.shape != self.compared.train.shape or not bool((self.floor_M >= 0).all()):
            raise InputError(
                f"the floor needs one |Δ| for each of the {self.compared.train.numel()} tokens; "
                "measure it on these tokens"
            )
        size_M = self.floor_M.double().clamp(max=CAP)
        if self.sampling is not None and self.sampling.greedy:
            biases = []
        else:
            biases = self.judge_biases(size_M)
        return [self.judge_mismatch(size_M), *usual, self.judge_sequence_ess(size_M), *biases]

    @property
    def bound_levels(self) -> tuple[float, float]:
        """Levels of the near and the far bound of a figure with an upper limit."""
        level = 1 - self.limits.confidence
        return level / self.near_bounds, level

    def judge_mismatch(self, floor_M: Tensor | None) -> Clause:
        """Compares the capped metric with a multiple of the floor's, paired per token so that
        common variation cancels.

        With fewer than `LEAST_CLUSTERS` clusters it does not pass.
        """
        paired = cap_prob_error(self.compared.delta)
        limit = self.limits.max_mult_prob_error
        if floor_M is not None:
            floor = cap_prob_error(floor_M)
            paired = paired - FLOOR_FACTOR * (floor - floor.mean())
            limit = 1 + DUST + FLOOR_FACTOR * (float(floor.mean()) - 1)
        totals = self.compared.sum_clusters(paired)
        found = bound_statistic(totals, cluster_mean, *self.bound_levels)
        found = FigureBounds(found.value, max(0.0, found.low), min(math.exp(CAP), found.high))
        verdict = _decide_verdict(found.low, found.high, limit)
        if verdict == "PASS" and totals.shape[0] < LEAST_CLUSTERS:
            verdict = "INCONCLUSIVE"
        return self._build_clause(
            "mismatch", found, limit, f"mean e^|Δ| (|Δ| counting at most {CAP:g})", verdict
        )

    def judge_mult_prob_error(self) -> Clause:
        """The usual test of RL libraries: the plain mean, without an interval.

        It fails if the near bound of the capped mean, which is smaller, is beyond the limit.
        """
        capped = bound_statistic(
            self.compared.sum_clusters(cap_prob_error(self.compared.delta)),
            cluster_mean,
            *self.bound_levels,
        )
        value = mult_prob_error(self.compared.delta)
        limit = self.limits.max_mult_prob_error
        found = FigureBounds(value, max(1.0, capped.low), min(math.exp(CAP), capped.high))
        if value <= found.high:
            what = "mean e^|Δ|"
        else:
            what = f"mean e^|Δ|, bounded as if no |Δ| were above {CAP:g},"
        return self._build_clause(
            "mult_prob_error", found, limit, what, _decide_verdict(capped.low, value, limit)
        )

    def judge_outliers(self) -> Clause:
        """The share of tokens with a large |Δ|."""
        return self._judge_rate(
            "outliers",
            self.compared.delta.abs() > OUTLIER,
            f"the share of tokens with |Δ| > {OUTLIER:g}",
        )

    def judge_support(self) -> Clause:
        """The share of drawn tokens to which one side gives no probability.

        Under top-k and top-p, rounding occasionally moves a token across the edge, so the limit is
        that of outliers. If every token can be drawn, a single such token fails.
        """
        broken_M = ~self.compared.supported
        what = "the share of tokens with no probability on one side"
        if self.sampling is not None and not self.sampling.full_support:
            return self._judge_rate("support", broken_M, what)
        share = float(broken_M.double().mean())
        return self._build_clause("support", FigureBounds(share, share, share), 0.0, what)

    def judge_sequence_ess(self, floor_M: Tensor) -> Clause:
        """The effective share of sequences; for long ones the limit is lower if the allowed
        multiple of the floor alone explains it.

        Independent rounding errors in a sequence sum to a log-weight of variance v = Σ floor², for
        which the effective share is e^−v.
        """
        spread = float(floor_M.square().sum() / (self.compared.lengths > 0).sum())
        limit = min(LEAST_ESS, math.exp(-(FLOOR_FACTOR**2) * spread))
        log_weight = sequence_weights(self.compared)
        found = FigureBounds(0.0, 0.0, 0.0)  # if the drawer could draw none of the tokens
        if log_weight.numel():
            # relative to the heaviest
            weight = (log_weight - log_weight.max().clamp(min=-1e6)).exp()
            totals = torch.stack([weight, weight.square(), torch.ones_like(weight)], 1)
            near, far = self.bound_levels
            found = bound_statistic(
                totals,
                lambda s: s[:, 0].square() / (s[:, 1] * s[:, 2]).clamp(min=1e-300),
                far,
                near,
            )
        found = FigureBounds(found.value, max(0.0, found.low), min(1.0, found.high))
        verdict = _decide_verdict(-found.high, -found.low, -limit)
        return self._build_clause(
            "sequence_ess", found, limit, "the effective share of sequences", verdict
        )

    def judge_biases(self, floor_M: Tensor) -> list[Clause]:
        """Tests that the other side's probabilities sum to 1 on the samples, which rounding does
        not change.

        E[e^Δ] = 1 if tokens come from the distribution that was scored, so E[Δ] ≈ −E[Δ²]/2. Allowed
        are `DUST` and the floor's variance, by which scores from a pass other than the drawing one
        may shift both.
        """
        allowed = DUST + float(floor_M.square().mean())
        both = self.compared.select_tokens(self.compared.supported)
        rated = self.compared.select_tokens(self.compared.infer.isfinite())
        totals = {
            ("bias", "mean Δ + Δ²/2"): both.sum_clusters(both.delta + both.delta.square() / 2),
            ("ratio", "mean e^Δ − 1"): rated.sum_clusters(clamp_exponential(rated.delta) - 1),
        }
        found: list[Clause] = []
        for (name, formula), own in totals.items():
            z = standard_errors(own, allowed)
            what = f"{formula}, in standard errors beyond rounding,"
            verdict = _decide_verdict(abs(z), abs(z), LARGEST_BIAS)
            found.append(
                self._build_clause(name, FigureBounds(z, z, z), LARGEST_BIAS, what, verdict)
            )
        return found

    def _judge_rate(self, name: str, hit_M: Tensor, what: str) -> Clause:
        found = bound_rate(self.compared.sum_clusters(hit_M.double()), *self.bound_levels)
        return self._build_clause(name, found, self.limits.max_outlier_rate, what)

    def _build_clause(
        self,
        name: str,
        found: FigureBounds,
        limit: float,
        what: str,
        verdict: Verdict | None = None,
    ) -> Clause:
        """A clause; by default its limit is an upper limit."""
        verdict = verdict or _decide_verdict(found.low, found.high, limit)
        return Clause(name, self.side, verdict, found.value, found.low, found.high, limit, what)


def _decide_verdict(low: float, high: float, limit: float) -> Verdict:
    """Decides whether a figure between two bounds is within an upper limit."""
    if low > limit:
        return "FAIL"
    if high <= limit:
        return "PASS"
    return "INCONCLUSIVE"
