"""Verdict on two sides: PASS if they surely agree, FAIL if they surely differ, INCONCLUSIVE if more
data is needed.

A cell passes if every clause does, and fails if one does. Disagreement is what stands until it is
refuted: a clause passes if even the far bound of its figure lies within the limit, and fails if
even the near bound lies beyond.

Far bounds are at the level of the whole table: it passes only if every cell does, so with one that
should not it passes no more often than that cell (an intersection-union test, Berger 1982). Near
bounds share the level among the cells, and in each among its sides and bounded figures
(Bonferroni), since each more is a chance to fail wrongly.

Rare tokens are the exception to far bounds of a cell's own: one too small for them passes if the
bound of all cells of its pair together, or of those of its method, is within the limit. That
certifies the rate of the pair, not of the cell, whose own must be within the limit as a plain
figure.
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
from lockstep_doctor.statistics import (
    CAP,
    Compared,
    cap,
    exponential,
    mult_prob_error,
    pool,
    sequence_weights,
)
from lockstep_doctor.table.base import Side
from lockstep_doctor.table.bounds import Bounded, bound, bound_rate, mean, standard_errors
from lockstep_doctor.table.options import DoctorLimits

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
EXIT_CODES: dict[Verdict, int] = {"FAIL": BROKEN, "INCONCLUSIVE": INCONCLUSIVE, "PASS": OK}
"""Exit codes by verdict, worst first."""

DUST = 1e-4
"""Mean |Δ|, nats, that is nothing at all, at any floor.

Two orders of summation in fp32 differ by some 1e-6 to 1e-5 nats per token: 1e-4 leaves room for a
deep model, where the floor happens to be bitwise zero. Rounding to bf16 makes a hundred times as
much, and as a bias in every token 1e-4 is 1 % of the importance weight of a response of 100 tokens.
"""
_BOUNDED = ("mismatch", "mult_prob_error", "outliers", "support", "sequence_ess")
FLOOR_FACTOR = 3.0
"""Times that the mismatch may be what rounding alone makes of the same tokens."""
OUTLIER = 1.0
"""Nats: a token is an outlier from this |Δ| on."""
LARGEST_BIAS = 4.0
"""Standard errors that a bias may be away from none."""
LEAST_ESS = 0.5
"""Effective share of sequences, at least, if each were weighted by its importance ratio."""
_RARE = ("outliers", "support")  # a token without probability on one side is an outlier, too
LEAST_CLUSTERS = 8
"""Fewest clusters for valid bounds; below, nothing passes."""


@dataclass(frozen=True)
class Clause:
    """One figure against its limit.

    Attributes:
        side: Which side drew the tokens.
        limit: What it may be; at most, but for `sequence_ess`.
        what: Names the figure in words.
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
        """Sentence for a user."""
        relation = {
            "PASS": "within",
            "FAIL": "beyond",
            "INCONCLUSIVE": "not surely on either side of",
        }[self.verdict]
        if self.low < self.high:
            bounds = f" ({self.low:.5g} to {self.high:.5g})"
        else:
            bounds = ""
        if self.side == "infer":
            drawn = "inference"
        else:
            drawn = "training"
        return (
            f"tokens of the {drawn} side: {self.what} is {self.value:.5g}{bounds}, {relation} the "
            f"limit {self.limit:.5g}"
        )


@dataclass(frozen=True)
class CellJudgement:
    """Judgement of one cell.

    Attributes:
        metric: Mean of e^|Δ|, |Δ| counting at most `CAP`, over what the inference side drew.
        clauses: All of them, by side and name as in `infer.mismatch`.
    """

    verdict: Verdict
    metric: float
    low: float
    high: float
    clauses: dict[str, Clause]

    @property
    def reasons(self) -> tuple[str, ...]:
        """A sentence for each clause that made the verdict what it is."""
        return tuple(
            clause.sentence for clause in self.clauses.values() if clause.verdict == self.verdict
        )


def judge(
    drawn: Mapping[Side, tuple[Compared, Tensor | None]],
    limits: DoctorLimits,
    cells: int = 1,
    sampling: SamplingParams | None = None,
    tails: Clause | None = None,
) -> CellJudgement:
    """Judges one cell.

    Args:
        drawn: By the side that drew, of which the inference side is one: both sides on its tokens,
            and |Δ| that rounding in the declared types alone makes on these, nats [M]: what two
            legitimate ways to compute them differ by. None: it is unknown, and only the limits that
            need none apply.
        cells: How many cells are judged together.
        sampling: The distribution that was scored, and drawn from; None: temperature 1, all tokens.
        tails: `judge_tails` of all cells, or of those of its method; where it passes, so does a
            cell too small to bound so rare a thing, if its own share is within the limit.
    """
    near_bounds = cells * len(_BOUNDED) * len(drawn)
    clauses: list[Clause] = []
    for side, (compared, floor_M) in drawn.items():
        if side == "infer":
            seen = compared
        else:
            seen = compared.swap()
        clauses += _DrawnBy(side, seen, floor_M, limits, near_bounds, sampling).clauses()
    if tails is not None and tails.verdict == "PASS":
        clauses = [
            replace(tails, name=clause.name, side=clause.side)
            if clause.name in _RARE
            and clause.verdict == "INCONCLUSIVE"
            and clause.value <= clause.limit
            else clause
            for clause in clauses
        ]
    found = {f"{clause.side}.{clause.name}": clause for clause in clauses}
    metric = float(cap(drawn["infer"][0].delta).mean())
    bounds = found["infer.mult_prob_error"]
    return CellJudgement(
        worst_of(clause.verdict for clause in clauses), metric, bounds.low, bounds.high, found
    )


def judge_tails(parts: Sequence[Compared], limits: DoctorLimits) -> Clause:
    """The clause on outliers over several cells together: 4,603 tokens without one certify 1 in
    1,000 at 99 %.
    """
    return _DrawnBy("infer", pool(parts), None, limits).outliers()


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; none at all show nothing."""
    found = set(verdicts) or {"INCONCLUSIVE"}
    return next(verdict for verdict in EXIT_CODES if verdict in found)


@dataclass(frozen=True)
class _DrawnBy:
    """Tokens that one side drew; `compared` has it in the place of the inference side.

    `near_bounds` share the level.
    """

    side: Side
    compared: Compared
    floor_M: Tensor | None
    limits: DoctorLimits
    near_bounds: int = 1
    sampling: SamplingParams | None = None

    def clauses(self) -> list[Clause]:
        """All clauses; those that need a floor only where there is one."""
        usual = [self.mult_prob_error(), self.outliers(), self.support()]
        if self.floor_M is None:
            return [self.mismatch(None), *usual]
        if self.floor_M.shape != self.compared.train.shape or not bool((self.floor_M >= 0).all()):
            raise InputError(
                f"the floor needs one |Δ| for each of {self.compared.train.numel()} tokens; "
                "measure it on them"
            )
        size_M = self.floor_M.double().clamp(max=CAP)
        if self.sampling is not None and self.sampling.greedy:
            biases = []
        else:
            biases = self.biases(size_M)
        return [self.mismatch(size_M), *usual, self.sequence_ess(size_M), *biases]

    @property
    def levels(self) -> tuple[float, float]:
        """Levels of the near and the far bound of a figure that has a largest value."""
        level = 1 - self.limits.confidence
        return level / self.near_bounds, level

    def mismatch(self, floor_M: Tensor | None) -> Clause:
        """The capped metric against a multiple of the floor's, token by token, so that what moves
        both moves neither.

        Few clusters pass nothing.
        """
        paired = cap(self.compared.delta)
        limit = self.limits.max_mult_prob_error
        if floor_M is not None:
            floor = cap(floor_M)
            paired = paired - FLOOR_FACTOR * (floor - floor.mean())
            limit = 1 + DUST + FLOOR_FACTOR * (float(floor.mean()) - 1)
        totals = self.compared.totals(paired)
        found = bound(totals, mean, *self.levels)
        found = Bounded(found.value, max(0.0, found.low), min(math.exp(CAP), found.high))
        verdict = _decide(found.low, found.high, limit)
        if verdict == "PASS" and totals.shape[0] < LEAST_CLUSTERS:
            verdict = "INCONCLUSIVE"
        return self._clause(
            "mismatch", found, limit, f"mean e^|Δ| (|Δ| counting at most {CAP:g})", verdict
        )

    def mult_prob_error(self) -> Clause:
        """The field's own test: the plain mean, no interval.

        It fails where the capped one, which is less, does.
        """
        capped = bound(self.compared.totals(cap(self.compared.delta)), mean, *self.levels)
        value = mult_prob_error(self.compared.delta)
        limit = self.limits.max_mult_prob_error
        found = Bounded(value, max(1.0, capped.low), min(math.exp(CAP), capped.high))
        if value <= found.high:
            what = "mean e^|Δ|"
        else:
            what = f"mean e^|Δ|, bounded as if no |Δ| were above {CAP:g},"
        return self._clause(
            "mult_prob_error", found, limit, what, _decide(capped.low, value, limit)
        )

    def outliers(self) -> Clause:
        """The share of tokens with a large |Δ|."""
        return self._rate(
            "outliers",
            self.compared.delta.abs() > OUTLIER,
            f"the share of tokens with |Δ| > {OUTLIER:g}",
        )

    def support(self) -> Clause:
        """Tokens that were drawn and that one side gives no probability.

        Under top-k and top-p rounding moves a token over the edge now and then: they may be as rare
        as outliers. Where every token can be drawn, one is proof.
        """
        broken_M = ~self.compared.supported
        what = "the share of tokens with no probability on one side"
        if self.sampling is not None and not self.sampling.full_support:
            return self._rate("support", broken_M, what)
        share = float(broken_M.double().mean())
        return self._clause("support", Bounded(share, share, share), 0.0, what)

    def sequence_ess(self, floor_M: Tensor) -> Clause:
        """Effective share of sequences, or what the allowed multiple of the floor would leave of
        long ones, if less.

        Independent rounding errors add up in a sequence to a log-weight of variance v = Σ floor²,
        which leaves e^−v.
        """
        spread = float(floor_M.square().sum() / (self.compared.lengths > 0).sum())
        limit = min(LEAST_ESS, math.exp(-(FLOOR_FACTOR**2) * spread))
        log_weight = sequence_weights(self.compared)
        found = Bounded(
            0.0, 0.0, 0.0
        )  # where the side in the inference side's place could draw none of the tokens
        if log_weight.numel():
            weight = (log_weight - log_weight.max().clamp(min=-1e6)).exp()  # of the heaviest: 1
            totals = torch.stack([weight, weight.square(), torch.ones_like(weight)], 1)
            (near, far) = self.levels
            found = bound(
                totals,
                lambda s: s[:, 0].square() / (s[:, 1] * s[:, 2]).clamp(min=1e-300),
                far,
                near,
            )
        found = Bounded(found.value, max(0.0, found.low), min(1.0, found.high))
        verdict = _decide(-found.high, -found.low, -limit)
        return self._clause(
            "sequence_ess", found, limit, "the effective share of sequences", verdict
        )

    def biases(self, floor_M: Tensor) -> list[Clause]:
        """Tests that the other side's probabilities sum to 1 on the samples, which rounding does
        not change.

        E[e^Δ] = 1 if tokens come from the very distribution that was scored, and so E[Δ] ≈
        −E[Δ²]/2. A bias counts beyond the floor's variance, by which scores that are not the
        drawing pass's own may shift both, and beyond `DUST`.
        """
        allowed = DUST + float(floor_M.square().mean())
        both = self.compared.select(self.compared.supported)
        rated = self.compared.select(self.compared.infer.isfinite())
        totals = {
            ("bias", "mean Δ + Δ²/2"): both.totals(both.delta + both.delta.square() / 2),
            ("ratio", "mean e^Δ − 1"): rated.totals(exponential(rated.delta) - 1),
        }
        found: list[Clause] = []
        for (name, formula), own in totals.items():
            z = standard_errors(own, allowed)
            what = f"{formula}, in standard errors beyond rounding,"
            verdict = _decide(abs(z), abs(z), LARGEST_BIAS)
            found.append(self._clause(name, Bounded(z, z, z), LARGEST_BIAS, what, verdict))
        return found

    def _rate(self, name: str, hit_M: Tensor, what: str) -> Clause:
        found = bound_rate(self.compared.totals(hit_M.double()), *self.levels)
        return self._clause(name, found, self.limits.max_outlier_rate, what)

    def _clause(
        self, name: str, found: Bounded, limit: float, what: str, verdict: Verdict | None = None
    ) -> Clause:
        """A figure; without a verdict it may have its limit at most."""
        verdict = verdict or _decide(found.low, found.high, limit)
        return Clause(name, self.side, verdict, found.value, found.low, found.high, limit, what)


def _decide(low: float, high: float, limit: float) -> Verdict:
    """Decides if a figure between two bounds is within a largest value."""
    if low > limit:
        return "FAIL"
    if high <= limit:
        return "PASS"
    return "INCONCLUSIVE"
