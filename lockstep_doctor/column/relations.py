"""Formulas that turn one side's values into the other's: another unit, a sign, an offset, a factor, a temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lockstep_doctor.column.predicates import Floats

EXACT = 0.97
"""Share of the squares that a formula must explain to be the whole of it."""

_LEAST = 8
_ROUNDING = 0.03  # nats by which rounding may carry a token over a line
_MOST_BEYOND = 0.005


@dataclass(frozen=True)
class Relation:
    """A formula for one side's values, given the other's.

    Attributes:
        kind: `negated`, `probability`, `base 2`, `base 10`, `offset`, `scaled` or `temperature`.
        what: In words, with its size.
        share: Of the squares of the differences that it explains.
    """

    kind: str
    what: str
    share: float


_UNITS: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("negated", "the other side's with the sign turned", lambda x: -x),
    ("probability", "the other side's probabilities, not their logarithms", lambda x: np.exp(np.minimum(x, 50.0))),
    ("base 2", "the other side's as logarithms to the base 2", lambda x: x / math.log(2)),
    ("base 10", "the other side's as logarithms to the base 10", lambda x: x / math.log(10)),
)


def find_relation(own: Floats, other: Floats) -> Relation | None:
    """Finds the formula that explains most of the differences, the simplest first.

    Args:
        own: Values of the side that is asked about.
        other: Of the other one.
    """
    if own.size < _LEAST or not np.isfinite(own).all() or not np.isfinite(other).all():
        return None
    total = float(np.square(own - other).sum())
    if total <= 0:
        return None

    def share(guess: Floats) -> float:
        return 1 - float(np.square(own - guess).sum()) / total

    fixed = [Relation(kind, what, share(formula(other))) for kind, what, formula in _UNITS]
    best = max(fixed, key=lambda one: one.share)
    if best.share > EXACT:
        return best
    offset = float(np.median(own - other))
    added = Relation("offset", f"the other side's {offset:+.4g} nats", share(other + offset))
    factor = fit_factor(own, other)
    times = Relation("scaled", f"{factor:.4g} times the other side's", share(factor * other))
    return max((added, times, best), key=lambda one: one.share)


def fit_factor(own: Floats, other: Floats) -> float:
    """The factor between two columns that both have errors (Deming), where least squares would be attenuated."""
    xx, yy, xy = (float((a * b).sum()) for a, b in ((other, other), (own, own), (other, own)))
    if abs(xy) < 1e-300:
        return 0.0
    return (yy - xx + math.sqrt((yy - xx) ** 2 + 4 * xy * xy)) / (2 * xy)


def fit_temperature(train: Floats, infer: Floats) -> Relation | None:
    """Finds the ratio of two temperatures from the edge of the cloud, not from its slope.

    With α the ratio, log p_α = α·log p + (α − 1)·H, where H ≥ 0 is an entropy (Rényi's) of the token's context. A slope
    over all tokens is attenuated by how H varies with log p; but where H is near 0 the points lie on the line α·log p,
    and none lies beyond it. So α is the extreme ratio among unlikely tokens, and the line must bound all the others.

    Returns:
        None where the differences do not follow the log-probability, or the line bounds nothing.
    """
    delta, x = train - infer, infer - infer.mean()
    variance = float(np.square(x).sum())
    total = float(np.square(delta - delta.mean()).sum())
    if not variance or not total:
        return None
    slope = float((x * delta).sum()) / variance
    share = slope * slope * variance / total
    rare = infer < -3.0
    if abs(slope) < 0.02 or share < 0.2 or rare.sum() < 30:
        return None
    ratio = np.sort(train[rare] / infer[rare])
    far = min(2, ratio.size - 1)
    alpha = float(ratio[-1 - far] if slope > 0 else ratio[far])
    if abs(alpha - 1) < abs(slope) or not 0.05 < alpha < 20:
        return None
    past = (alpha * infer - train) * math.copysign(1.0, slope)
    beyond = past > _ROUNDING + 0.05 * abs((alpha - 1) * infer)
    if np.mean(beyond) > _MOST_BEYOND:
        return None
    what = (
        f"as if inference's temperature were {alpha:.3g} times training's: its line bounds "
        f"{1 - np.mean(beyond):.1%} of the tokens, and a line explains {share:.0%} of the variance (the entropy of "
        f"contexts makes the rest)"
    )
    return Relation("temperature", what, share)
