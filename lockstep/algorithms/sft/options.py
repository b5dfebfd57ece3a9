"""The options of supervised fine-tuning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from lockstep.config.machinery import Optimizer
from lockstep.config.run import Supervised
from lockstep.config.section import Section


class SFT(Section):
    """Supervised fine-tuning on completions, the stop token included."""

    global_batch_size: PositiveInt = Field(description="rows per optimizer step")
    max_tokens: PositiveInt = Field(description="longest prompt and completion together")


class SFTRecipe(Supervised):
    """`algorithm: sft`"""

    learned = "a demonstration"
    algorithm: Literal["sft"] = Field(description="what is run")
    sft: SFT
    optimizer: Optimizer
