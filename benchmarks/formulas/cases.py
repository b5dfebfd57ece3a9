"""Cases: what one library computes for one formula, and how it relates to the paper's equation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from benchmarks.formulas.rollouts import Answer, Method, Rollouts

ROUNDING = 1e-5
"""Largest difference that fp32 explains, relative to the largest number of the equation's
answer.
"""

Verdict = Literal["equal", "convention", "substance", "unexplained"]


@dataclass(frozen=True)
class Case:
    """One library's function with one choice of its options.

    Attributes:
        formula: Key in `catalog.FORMULAS`.
        run: Calls the function.
        at: `file:line` of it.
        options: Options that were set, in the library's words; "" for none that matter.
        kind: How it differs; None: not at all.
        because: What differs, in few words.
        instead: The same difference written in float64, which the function must equal to rounding.
    """

    formula: str
    run: Method
    at: str
    options: str = ""
    kind: Literal["convention", "substance"] | None = None
    because: str = ""
    instead: Method | None = None


@dataclass(frozen=True)
class Outcome:
    """A row of the result.

    Attributes:
        formula: Key.
        library: Whose function.
        verdict: How it relates to the paper's equation.
        value: Largest difference from it, relative to its largest number; None where the value has
            no meaning.
        gradient: The same of the gradient; None where there is none.
        explained_to: Largest difference, of both, from the equation with the difference written
            into it.
        options: As of `Case`.
        because: As of `Case`.
        at: As of `Case`.
    """

    formula: str
    library: str
    verdict: Verdict
    value: float | None
    gradient: float | None
    explained_to: float | None
    options: str
    because: str
    at: str


def judge(library: str, case: Case, reference: Method, batch: Rollouts) -> Outcome:
    """Runs a case and compares it with the paper's equation, and where it differs with that of its
    difference.
    """
    answer = case.run(batch)
    wanted = reference(batch)
    value, gradient = _differences(answer, wanted, batch)
    explained_to: float | None = None
    verdict: Verdict = "equal"
    if _largest(value, gradient) > ROUNDING:
        if case.instead is not None:
            explained_to = _largest(*_differences(answer, case.instead(batch), batch))
        settled = case.kind is not None and explained_to is not None and explained_to <= ROUNDING
        verdict = case.kind if settled and case.kind is not None else "unexplained"
    return Outcome(
        case.formula,
        library,
        verdict,
        value,
        gradient,
        explained_to,
        case.options,
        case.because,
        case.at,
    )


def _differences(
    answer: Answer, wanted: Answer, batch: Rollouts
) -> tuple[float | None, float | None]:
    return _difference(answer.value, wanted.value, batch), _difference(
        answer.gradient, wanted.gradient, batch
    )


def _difference(x: Tensor | None, wanted: Tensor | None, batch: Rollouts) -> float | None:
    if x is None or wanted is None:
        return None
    if wanted.ndim and len(wanted) == len(batch.mask):
        x = batch.trained(x)
        wanted = batch.trained(wanted)
    return float((x.double() - wanted).abs().max() / wanted.abs().max())


def _largest(*differences: float | None) -> float:
    known = [x for x in differences if x is not None]
    return math.inf if any(math.isnan(x) for x in known) or not known else max(known)
