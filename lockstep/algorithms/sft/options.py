"""The options of supervised fine-tuning."""

from __future__ import annotations

from typing import final

from pydantic import Field, PositiveInt

from lockstep.algorithms.roles import Load, ModelRole
from lockstep.algorithms.supervised import SupervisedRecipe
from lockstep.config import Section


class SFTSection(Section):
    """Supervised fine-tuning on completions, including the stop token."""

    global_batch_size: PositiveInt = Field(description="rows per optimizer step")
    max_tokens: PositiveInt = Field(description="longest prompt plus completion")
    all_turns: bool = Field(
        default=False,
        description="learn all assistant turns of a conversation instead of the last one",
    )


@final
class SFTRecipe(SupervisedRecipe):
    """`algorithm: sft`"""

    sft: SFTSection

    @property
    def idle_options(self) -> dict[str, str]:
        return super().idle_options | {"run.num_logged_samples": "if nothing is sampled"}

    @property
    def models(self) -> tuple[ModelRole, ...]:
        return (self.policy_role,)

    @property
    def largest_step(self) -> Load:
        return Load(self.sft.max_tokens, 1, self.sft.global_batch_size)

    @property
    def lengths(self) -> dict[str, int]:
        return {"sft.max_tokens": self.sft.max_tokens}

    @property
    def longest_demonstration(self) -> int:
        return self.sft.max_tokens
