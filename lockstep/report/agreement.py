"""The verdict on whether training and sampling agreed in a run, with its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.core import exit_codes
from lockstep.report.log import read_metrics, read_recipe

_MEASURED = {
    f"agreement/{name}"
    for name in ("max_abs_logprob_diff", "token_mult_prob_error", "bound", "breach")
}
"""Metrics that a step has along with `agreement/tokens`."""


@dataclass(frozen=True)
class AgreementSummary:
    """Agreement over all steps of a run.

    Attributes:
        tokens: Number of tokens that both sides scored.
        largest: Largest |Δ| of a token, nats; NaN if any step's is NaN.
        highest: Largest step mean of e^|Δ|; NaN if any step's is NaN.
        bound: Bound on that mean in the last step.
        breaches: Number of steps that broke the bound.
    """

    tokens: int
    largest: float
    highest: float
    bound: float
    breaches: int

    @property
    def word(self) -> Literal["AGREE", "DISAGREE", "NOT MEASURED"]:
        if not self.tokens:
            return "NOT MEASURED"
        if self.breaches:
            return "DISAGREE"
        return "AGREE"

    @property
    def exit_code(self) -> int:
        """Exit code of a command that ends such a run."""
        match self.word:
            case "AGREE" | "NOT MEASURED":
                return exit_codes.OK
            case "DISAGREE":
                return exit_codes.BROKEN

    @property
    def sentence(self) -> str:
        """The verdict and the figures."""
        if not self.tokens:
            return (
                "NOT MEASURED: no sampled token has log-probabilities from both sampler and learner"
            )
        steps = ""
        if self.breaches:
            steps = f", exceeded in {self.breaches} step{'s' * (self.breaches > 1)}"
        elif self.highest > self.bound:
            steps = ", exceeded by less than three standard errors"
        largest = f"{self.largest:.1e}" if self.largest else "0"
        return (
            f"{self.word}: {self.tokens:,} tokens compared, largest |Δ log-prob| {largest}, mean "
            f"e^|Δ| at most {self.highest:.6f}, bound {self.bound:g}{steps}"
        )


def read_agreement(folder: Path) -> AgreementSummary | None:
    """Reads agreement from a run's metrics; None if the run does not sample."""
    if "agreement" in read_recipe(folder):
        return summarize_agreement(read_metrics(folder))
    return None


def summarize_agreement(rows: Sequence[dict[str, float]]) -> AgreementSummary:
    """Summarizes lines of metrics."""
    measured = [
        row for row in rows if row.get("agreement/tokens", 0) > 0 and row.keys() >= _MEASURED
    ]
    return AgreementSummary(
        tokens=int(sum(row["agreement/tokens"] for row in measured)),
        largest=_find_largest([row["agreement/max_abs_logprob_diff"] for row in measured]),
        highest=_find_largest([row["agreement/token_mult_prob_error"] for row in measured]),
        bound=measured[-1]["agreement/bound"] if measured else math.nan,
        breaches=sum(row["agreement/breach"] > 0 for row in measured),
    )


def _find_largest(values: Sequence[float]) -> float:
    """The largest value; NaN counts as the largest."""
    if any(map(math.isnan, values)):
        return math.nan
    return max(values, default=math.nan)
