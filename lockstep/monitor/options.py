"""The options of the comparison of sampler and learner during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, assert_never

from pydantic import Field, PositiveInt

from lockstep.config.machinery import DType
from lockstep.config.section import Section

_CEILINGS: Mapping[DType, float] = {"fp32": 1.001, "bf16": 1.05, "fp16": 1.01}


class DriftSection(Section):
    """The drift monitor: an alarm if the mismatch rises; see docs/guides/add_a_model.md."""

    false_alarm_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.01, description="bound on the probability that a healthy run ever raises an alarm"
    )
    baseline_steps: PositiveInt = Field(
        default=20, description="number of first steps from which to learn the usual mismatch"
    )
    factor: Annotated[float, Field(gt=1.0)] = Field(
        default=1.5,
        description=(
            "a mismatch is healthy up to this times (mean + 3 standard errors) of the first steps"
        ),
    )


class AgreementSection(Section):
    """The promise that sampler and learner agree; see docs/guides/add_a_model.md."""

    exact: bool | Literal["require"] = Field(
        default=True,
        description=(
            "sample and train with kernels whose log-probabilities are bitwise equal; "
            "true: if possible; require: reject the recipe if impossible, and stop at a "
            "token that differs"
        ),
    )
    on_breach: Literal["stop", "warn"] = Field(
        default="stop",
        description=(
            "stop before training on a step that exceeds the bound; or warn, and exit with 4"
        ),
    )
    max_mult_prob_error: Annotated[float, Field(gt=1.0)] | None = Field(
        default=None,
        description=(
            "bound on the mean of e^|Δ| over a step's tokens; null: 1.001 in fp32, 1.05 "
            "in bf16, 1.01 in fp16"
        ),
    )
    drift: DriftSection | None = Field(
        default=DriftSection(),
        description="alarm if the mismatch rises above its level in the first steps; null: off",
    )

    @property
    def wants_exact(self) -> bool:
        """True if both sides compute exactly when possible."""
        return self.exact is not False

    @property
    def requires_exact(self) -> bool:
        """True to reject inexact recipes and end a run at the first differing token."""
        return self.exact == "require"

    @property
    def stops_run(self) -> bool:
        """True if a violated bound ends the run."""
        match self.on_breach:
            case "stop":
                return True
            case "warn":
                return False
            case _:
                assert_never(self.on_breach)

    def choose_bound(self, dtype: DType) -> float:
        """The bound on the mean of e^|Δ| for a run's dtype."""
        if self.max_mult_prob_error is not None:
            return self.max_mult_prob_error
        return _CEILINGS[dtype]
