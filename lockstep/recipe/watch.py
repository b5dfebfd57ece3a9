"""The options of the doctor in training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from lockstep.recipe.section import Section


class DoctorSection(Section):
    """The doctor, who watches over training and sampling; see docs/guides/add_a_model.md."""

    watch: bool = Field(default=True, description="raise an alarm when sampler and learner drift apart")
    false_alarm_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.01, description="bound on the chance that a healthy run ever has an alarm"
    )
    baseline_steps: PositiveInt = Field(default=20, description="first steps, from which the usual mismatch is learned")
    factor: Annotated[float, Field(gt=1.0)] = Field(
        default=1.5, description="how many times the usual mismatch, and three of its standard errors, is still healthy"
    )
