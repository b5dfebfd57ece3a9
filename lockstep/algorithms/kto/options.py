"""The options of KTO."""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from lockstep.algorithms.roles import Load, ModelRole
from lockstep.algorithms.supervised import SupervisedRecipe
from lockstep.config import DataSection, Section
from lockstep.config.section import rule


class LabeledSection(DataSection):
    """Rows with a prompt, one answer, and a label: desirable or not."""

    label: str = Field(
        default="label", description="field that is true if the answer is desirable, else false"
    )


class KTOSection(Section):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024); see docs/algorithms/kto.md."""

    global_batch_size: Annotated[int, Field(ge=2)] = Field(description="rows per optimizer step")
    max_tokens: PositiveInt = Field(description="longest prompt plus completion")
    ref_policy_kl_penalty: PositiveFloat = Field(
        default=0.1,
        description=(
            "β: strength of the penalty for leaving the reference policy (the initial model)"
        ),
    )
    desirable_weight: NonNegativeFloat = Field(
        default=1.0, description="λ_D: weight of rows with label true"
    )
    undesirable_weight: NonNegativeFloat = Field(
        default=1.0, description="λ_U: weight of rows with label false"
    )

    @rule
    def _something_is_learned(self) -> None:
        if not self.desirable_weight and not self.undesirable_weight:
            raise ValueError(
                "desirable_weight and undesirable_weight are both 0, so nothing is learned; raise "
                "one"
            )


@final
class KTORecipe(SupervisedRecipe):
    """`algorithm: kto`"""

    data: LabeledSection  # pyright: ignore[reportIncompatibleVariableOverride] — frozen, so safe to narrow
    kto: KTOSection

    @property
    def idle_options(self) -> dict[str, str]:
        return super().idle_options | {"run.num_logged_samples": "if nothing is sampled"}

    @property
    def models(self) -> tuple[ModelRole, ...]:
        return self.policy_role, self.frozen_reference

    @property
    def largest_step(self) -> Load:
        rows = self.kto.global_batch_size
        return Load(self.kto.max_tokens, 1, rows, scored=2 * rows)

    @property
    def lengths(self) -> dict[str, int]:
        return {"kto.max_tokens": self.kto.max_tokens}

    @property
    def longest_demonstration(self) -> int:
        return self.kto.max_tokens
