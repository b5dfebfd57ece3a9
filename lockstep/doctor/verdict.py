"""Verdict on two sides: PASS if they surely agree, FAIL if they surely differ, INCONCLUSIVE if more data is needed.

A cell passes if every clause does, and fails if one does. Disagreement is what stands until it is refuted: a clause
passes if even the far bound of its figure lies within the limit, and fails if even the near bound lies beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lockstep.doctor.base import Side
from lockstep.doctor.bounds import Bootstrap, Bounded, Rate, Student, holm
from lockstep.doctor.options import DoctorLimits
from lockstep.errors import InputError
from lockstep.exit_codes import BROKEN, INCONCLUSIVE, OK
from lockstep.types import SamplingParams
from lockstep_doctor.statistics import CAP, Compared, cap, exponential, mult_prob_error, pool, sequence_weights

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
EXIT_CODES: dict[Verdict, int] = {"PASS": OK, "FAIL": BROKEN, "INCONCLUSIVE": INCONCLUSIVE}
"""Exit codes by verdict."""
_WORST_FIRST: tuple[Verdict, ...] = ("FAIL", "INCONCLUSIVE", "PASS")

DUST = 1e-4
"""Mean |Δ|, nats, that is nothing at all, whatever the floor.

Two orders of summation in fp32 differ by some 1e-6 to 1e-5 nats per token: 1e-4 leaves room for a deep model, where the
floor happens to be bitwise zero. Rounding to bf16 makes a hundred times as much, and as a bias in every token 1e-4 is
1 % of the importance weight of a response of 100 tokens.
"""
_RARE = ("outliers", "support")  # a token without probability on one side is an outlier, too
LEAST_CLUSTERS = 8
"""Fewest clusters for a valid bootstrap; below, nothing passes."""


@dataclass(frozen=True)
class Clause:
    """One figure against its limit.

    Attributes:
        name: Of the clause.
        side: Which side drew the tokens.
        verdict: At the level it was judged.
        value: The figure.
        low: Its lower bound.
        high: Its upper bound.
        limit: What it may be; at most, but for `sequence_ess`.
        p_within: Against being beyond the limit, for PASS.
        p_beyond: Against being within it, for FAIL.
        what: Names the figure in words.
    """

    name: str
    side: Side
    verdict: Verdict
    value: float
    low: float
    high: float
    limit: float
    p_within: float
    p_beyond: float
    what: str

    def at(self, level: float) -> Clause:
        """Judged at another level; the bounds stay."""
        return replace(self, verdict=_verdict(self.p_within, self.p_beyond, level))

    @property
    def sentence(self) -> str:
        """Sentence for a user."""
        relation = {"PASS": "within", "FAIL": "beyond", "INCONCLUSIVE": "not surely on either side of"}[self.verdict]
        bounds = f" ({self.low:.5g} to {self.high:.5g})" if self.low < self.high else ""
        drawn = "inference" if self.side == "infer" else "training"
        return (
            f"tokens of the {drawn} side: {self.what} is {self.value:.5g}{bounds}, {relation} the limit "
            f"{self.limit:.5g}"
        )


@dataclass(frozen=True)
class CellJudgement:
    """Judgement of one cell.

    Attributes:
        verdict: Of the cell.
        metric: Mean of e^|Δ|, |Δ| counting at most `CAP`, over what the inference side drew.
        low: Its lower bound.
        high: Its upper bound.
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
        return tuple(clause.sentence for clause in self.clauses.values() if clause.verdict == self.verdict)

    def at(self, level: float) -> CellJudgement:
        """The verdict at another level."""
        clauses = {name: clause.at(level) for name, clause in self.clauses.items()}
        return replace(self, clauses=clauses, verdict=_of_all(clauses.values()))


def judge(
    infer_drawn: Compared,
    train_drawn: Compared | None,
    floor_M: Tensor | None,
    limits: DoctorLimits,
    cells: int = 1,
    *,
    train_floor_M: Tensor | None = None,
    sampling: SamplingParams | None = None,
    tails: Clause | None = None,
) -> CellJudgement:
    """Judges one cell.

    Args:
        infer_drawn: Both sides on tokens that the inference side drew.
        train_drawn: On tokens that the training side drew; None: it drew none.
        floor_M: |Δ| that rounding in the declared types alone makes on the tokens of `infer_drawn`, nats [M]: what two
            legitimate ways to compute them differ by. None: it is unknown, and only the limits that need none apply.
        limits: What is allowed.
        cells: How many cells are judged together; bounds are as much surer (Bonferroni). See `step_down`.
        train_floor_M: As `floor_M`, on the tokens of `train_drawn`; it comes with it.
        sampling: The distribution that was scored, and drawn from; None: temperature 1, all tokens.
        tails: `judge_tails` of all cells; where it passes, it decides for a cell too small to bound so rare a thing.
    """
    level = (1 - limits.confidence) / cells
    clauses = _side("infer", infer_drawn, floor_M, limits, level, sampling)
    if train_drawn is not None:
        if floor_M is not None and train_floor_M is None:
            raise InputError("tokens of the training side need a floor of their own; measure it on them")
        clauses += _side("train", train_drawn.swap(), train_floor_M, limits, level, sampling)
    found = {f"{clause.side}.{clause.name}": clause for clause in clauses}
    if tails is not None and tails.verdict == "PASS":
        found |= {
            name: replace(tails, name=clause.name, side=clause.side)
            for name, clause in found.items()
            if clause.name in _RARE and clause.verdict == "INCONCLUSIVE"
        }
    metric, bounds = float(cap(infer_drawn.delta).mean()), found["infer.mult_prob_error"]
    return CellJudgement(_of_all(found.values()), metric, bounds.low, bounds.high, found)


def judge_tails(parts: Sequence[Compared], limits: DoctorLimits) -> Clause:
    """The clause on outliers over several cells together: 3,000 tokens without one are needed to certify 1 in 1,000."""
    return _outliers("infer", pool(parts), limits, 1 - limits.confidence)


def step_down(judgements: Sequence[CellJudgement], limits: DoctorLimits) -> list[CellJudgement]:
    """Judges cells together anew, each no more strictly than its rank asks for (Holm 1979).

    At most with probability 1 − confidence does any cell pass that should not, and likewise for failing.
    """
    level = 1 - limits.confidence
    passing = holm([max(clause.p_within for clause in one.clauses.values()) for one in judgements])
    failing = holm([min(clause.p_beyond for clause in one.clauses.values()) for one in judgements])
    found = []
    for one, p_within, p_beyond in zip(judgements, passing, failing, strict=True):
        found.append(one.at(level) if min(p_within, p_beyond) <= level else one.at(level / len(judgements)))
    return found


def _side(
    side: Side,
    compared: Compared,
    floor_M: Tensor | None,
    limits: DoctorLimits,
    level: float,
    sampling: SamplingParams | None,
) -> list[Clause]:
    """All clauses on tokens that one side drew; `compared` has it in the place of the inference side."""
    if floor_M is not None and (floor_M.shape != compared.train.shape or not bool((floor_M >= 0).all())):
        raise InputError(f"the floor needs one |Δ| for each of {compared.train.numel()} tokens; measure it on them")
    clauses = [
        _mismatch(side, compared, floor_M, limits, level),
        _usual(side, compared, limits, level),
        _outliers(side, compared, limits, level),
        _support(side, compared, limits, level, sampling),
    ]
    if floor_M is not None:
        clauses.append(_ess(side, compared, floor_M, limits, level))
    if floor_M is not None and (sampling is None or not sampling.greedy):
        clauses += _biases(side, compared, floor_M, limits)
    return clauses


def _mismatch(side: Side, compared: Compared, floor_M: Tensor | None, limits: DoctorLimits, level: float) -> Clause:
    """The capped metric against a multiple of the floor's, token by token, so that what moves both moves neither."""
    paired, limit = cap(compared.delta), limits.max_mult_prob_error
    if floor_M is not None:
        floor = cap(floor_M.double())
        paired = paired - limits.floor_factor * (floor - floor.mean())
        limit = 1 + DUST + limits.floor_factor * (float(floor.mean()) - 1)
    what = f"mean e^|Δ| (|Δ| counting at most {CAP:g})"
    clause = _at_most("mismatch", side, Bootstrap.of(compared.totals(paired), level), limit, level, what)
    clause = replace(clause, low=max(0.0, clause.low), high=min(math.exp(CAP), clause.high))
    few = compared.totals().shape[0] < LEAST_CLUSTERS
    return replace(clause, p_within=1.0).at(level) if few else clause


def _usual(side: Side, compared: Compared, limits: DoctorLimits, level: float) -> Clause:
    """The field's own test: the plain mean, no interval. It fails where the capped one, which is less, surely does."""
    capped_one = Bootstrap.of(compared.totals(cap(compared.delta)), level)
    low, high = max(1.0, capped_one.lower(level)), min(math.exp(CAP), capped_one.upper(level))
    value, limit = mult_prob_error(compared.delta), limits.max_mult_prob_error
    p_within, p_beyond = float(value >= limit), capped_one.p_stays(limit)
    verdict = _verdict(p_within, p_beyond, level)
    said = "mean e^|Δ|" if value <= high else f"mean e^|Δ|, bounded as if no |Δ| were above {CAP:g},"
    return Clause("mult_prob_error", side, verdict, value, low, high, limit, p_within, p_beyond, said)


def _outliers(side: Side, compared: Compared, limits: DoctorLimits, level: float) -> Clause:
    rate = Rate.of(compared.totals((compared.delta.abs() > limits.outlier_nats).double()))
    what = f"the share of tokens with |Δ| > {limits.outlier_nats:g}"
    return _at_most("outliers", side, rate, limits.max_outlier_rate, level, what)


def _support(
    side: Side, compared: Compared, limits: DoctorLimits, level: float, sampling: SamplingParams | None
) -> Clause:
    """Tokens that were drawn and that one side gives no probability.

    Under top-k and top-p rounding moves a token over the edge now and then: they may be as rare as outliers. Where
    every token can be drawn, one is proof.
    """
    broken = (~compared.supported).double()
    what = "the share of tokens with no probability on one side"
    if sampling is not None and not sampling.full_support:
        return _at_most("support", side, Rate.of(compared.totals(broken)), limits.max_outlier_rate, level, what)
    share = float(broken.mean())
    verdict: Verdict = "FAIL" if share else "PASS"
    return Clause("support", side, verdict, share, share, share, 0.0, float(share > 0), float(share == 0), what)


def _ess(side: Side, compared: Compared, floor_M: Tensor, limits: DoctorLimits, level: float) -> Clause:
    """Effective share of sequences, or what the allowed multiple of the floor would leave of long ones, if less.

    Independent rounding errors add up in a sequence to a log-weight of variance v = Σ floor², which leaves e^−v.
    """
    spread = float(floor_M.double().clamp(max=CAP).square().sum() / (compared.lengths > 0).sum())
    limit = min(limits.min_sequence_ess, math.exp(-(limits.floor_factor**2) * spread))
    log_weight = sequence_weights(compared)
    top = log_weight.max().clamp(min=-1e6)
    weight = (log_weight - top).exp()  # of the heaviest: 1
    totals = torch.stack([weight, weight.square(), torch.ones_like(weight)], 1)
    share = Student.jackknife(totals, lambda sums: sums[:, 0].square() / (sums[:, 1] * sums[:, 2]).clamp(min=1e-300))
    p_within, p_beyond = float(share.value < limit), share.p_reaches(limit)
    low, high = max(0.0, share.lower(level)), min(1.0, share.upper(level))
    verdict = _verdict(p_within, p_beyond, level)
    what = "the effective share of sequences"
    return Clause("sequence_ess", side, verdict, share.value, low, high, limit, p_within, p_beyond, what)


def _biases(side: Side, compared: Compared, floor_M: Tensor, limits: DoctorLimits) -> list[Clause]:
    """Tests that the other side's probabilities sum to 1 on the samples, which rounding does not change.

    E[e^Δ] = 1 if tokens come from the very distribution that was scored, and so E[Δ] ≈ −E[Δ²]/2. A bias counts beyond
    the floor's variance, by which scores that are not the drawing pass's own may shift both, and beyond `DUST`.
    """
    allowed = DUST + float(floor_M.double().clamp(max=CAP).square().mean())
    both = compared.select(compared.supported)
    rated = compared.select(compared.infer.isfinite())
    shift = both.delta + both.delta.square() / 2
    ratio = exponential(rated.delta) - 1
    return [
        _bias("bias", side, both.totals(shift), allowed, limits, "mean Δ + Δ²/2, in standard errors beyond rounding,"),
        _bias("ratio", side, rated.totals(ratio), allowed, limits, "mean e^Δ − 1, in standard errors beyond rounding,"),
    ]


def _bias(name: str, side: Side, totals: Tensor, allowed: float, limits: DoctorLimits, what: str) -> Clause:
    found = Student.jackknife(totals, lambda sums: sums[:, 0] / sums[:, 1])
    beyond = math.copysign(max(0.0, abs(found.value) - allowed), found.value)
    z, limit = replace(found, value=beyond).z, limits.max_bias_z
    far = abs(z) > limit
    verdict: Verdict = "FAIL" if far else "PASS"
    return Clause(name, side, verdict, z, z, z, limit, float(far), float(not far), what)


def _at_most(name: str, side: Side, bounded: Bounded, limit: float, level: float, what: str) -> Clause:
    p_within, p_beyond = bounded.p_reaches(limit), bounded.p_stays(limit)
    low, high, verdict = bounded.lower(level), bounded.upper(level), _verdict(p_within, p_beyond, level)
    return Clause(name, side, verdict, bounded.value, low, high, limit, p_within, p_beyond, what)


def _verdict(p_within: float, p_beyond: float, level: float) -> Verdict:
    if p_beyond <= level:
        return "FAIL"
    return "PASS" if p_within <= level else "INCONCLUSIVE"


def _of_all(clauses: Iterable[Clause]) -> Verdict:
    verdicts = {clause.verdict for clause in clauses}
    return next(verdict for verdict in _WORST_FIRST if verdict in verdicts)
