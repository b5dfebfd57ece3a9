"""The options of supervised fine-tuning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from lockstep.recipe.machinery import Optimizer
from lockstep.recipe.run import Common
from lockstep.recipe.section import Section


class SFT(Section):
    """Supervised fine-tuning on completions, the stop token included."""

    global_batch_size: PositiveInt = Field(description="rows per optimizer step")
    max_tokens: PositiveInt = Field(description="longest prompt and completion together")


class SFTRecipe(Common):
    """`algorithm: sft`"""

    algorithm: Literal["sft"] = Field(description="what is run")
    sft: SFT
    optimizer: Optimizer

    @model_validator(mode="after")
    def _demonstrations_are_whole(self) -> SFTRecipe:
        if self.data.overlong_prompts == "truncate":
            raise ValueError(
                "data.overlong_prompts=truncate is for prompts that a sampler answers; a demonstration is learned "
                "whole, so say error or skip"
            )
        return self

    @model_validator(mode="after")
    def _nothing_samples(self) -> SFTRecipe:
        if self.run.require_doctor:
            raise ValueError(
                "run.require_doctor is about training and sampling, but nothing samples here; leave it out"
            )
        return self
