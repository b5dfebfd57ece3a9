"""The options of distillation."""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field, PositiveInt

from lockstep.algorithms.rewarded import SampledRecipe
from lockstep.algorithms.roles import Load, ModelRole
from lockstep.config import ModelFolder, Optimizer, RepeatedSampling, Sampling, Section
from lockstep.config.section import rule
from lockstep.core.types import DivergenceKind


class DistillSection(Section):
    """Distillation (Hinton et al. 2015; Agarwal et al. 2024); see docs/algorithms/distill.md."""

    on_policy: bool = Field(
        default=True,
        description="train on the student's responses; false: on the answers in the data",
    )
    num_prompts_per_step: PositiveInt = Field(description="rows per step")
    num_generations: PositiveInt = Field(
        default=1, description="responses per prompt; requires on_policy"
    )
    global_batch_size: PositiveInt = Field(description="responses or answers per optimizer step")
    max_tokens: PositiveInt | None = Field(
        default=None, description="longest prompt plus answer, without on_policy"
    )
    kl_type: DivergenceKind = Field(
        default="reverse",
        description=(
            "KL(teacher ‖ student), KL(student ‖ teacher), their weighted sum, or the "
            "Jensen-Shannon divergence"
        ),
    )
    mixed_kl_weight: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None,
        description="mixed: weight of the forward KL; jsd: weight of the teacher in the mixture",
    )
    top_k: PositiveInt | None = Field(
        default=None,
        description=(
            "number of the teacher's likeliest tokens to learn at each position; null: the full "
            "vocabulary"
        ),
    )
    zero_outside_topk: bool = Field(
        default=False,
        description=(
            "with top_k: push the student's probability of other tokens to zero; false: ignore it"
        ),
    )

    @property
    def response_count(self) -> int:
        """Number of responses per step."""
        return self.num_prompts_per_step * self.num_generations

    @property
    def update_count(self) -> int:
        """Number of optimizer steps per step."""
        return self.response_count // self.global_batch_size

    @rule
    def _batches_divide(self) -> None:
        if self.response_count % self.global_batch_size:
            raise ValueError(
                f"num_prompts_per_step × num_generations = {self.response_count} is not a "
                f"multiple of global_batch_size = {self.global_batch_size}; set that to "
                f"{self.response_count}, or a divisor of it"
            )

    @rule
    def _answers_are_there_once(self) -> None:
        if self.on_policy == (self.max_tokens is not None):
            raise ValueError(
                "max_tokens requires on_policy=false, and on_policy=false requires max_tokens"
            )
        if not self.on_policy and self.num_generations > 1:
            raise ValueError("num_generations requires on_policy=true")

    @rule
    def _require_top_k(self) -> None:
        if self.zero_outside_topk and self.top_k is None:
            raise ValueError("zero_outside_topk requires top_k")
        if self.top_k == 1 and not self.zero_outside_topk:
            raise ValueError(
                "top_k=1 compares distributions over a single token, which are always equal; set "
                "top_k to 2 or more, or zero_outside_topk=true"
            )

    @rule
    def _weights_weigh(self) -> None:
        if (self.kl_type in ("mixed", "jsd")) != (self.mixed_kl_weight is not None):
            raise ValueError("mixed_kl_weight requires kl_type mixed or jsd; set both or neither")


@final
class DistillRecipe(SampledRecipe):
    """`algorithm: distill`"""

    distill: DistillSection
    teacher: ModelFolder = Field(description="the teacher model")
    sampling: Sampling | None = Field(
        default=None, description="sampling of student rollouts; requires on_policy"
    )
    optimizer: Optimizer
    validation_sampling: RepeatedSampling | None = Field(
        default=None, description="sampling of held-out responses"
    )

    @rule
    def _require_answers(self) -> None:
        if self.distill.on_policy != (self.sampling is not None):
            raise ValueError("sampling requires distill.on_policy; set both or neither")

    @rule
    def _validation_is_whole(self) -> None:
        if self.data.validation is not None and self.validation_reward is None:
            raise ValueError("data.validation needs validation_reward to score its responses")
        self._require_whole_validation()

    @property
    def policy_role(self) -> ModelRole:
        """The student."""
        return ModelRole("policy", "logits", self.learner, self.optimizer)

    @property
    def teacher_role(self) -> ModelRole:
        """The teacher."""
        return ModelRole("teacher", "logits", self.learner, path=self.teacher.path)

    @property
    def models(self) -> tuple[ModelRole, ...]:
        return self.policy_role, self.teacher_role

    @property
    def largest_step(self) -> Load:
        its = self.distill
        prompt = self.data.max_prompt_tokens
        sections = filter(None, (self.sampling, self.validation_sampling))
        generated = max((prompt + section.max_tokens for section in sections), default=0)
        return Load(
            its.max_tokens or generated,
            1,
            its.global_batch_size,
            its.update_count,
            its.response_count,
            generated,
        )

    @property
    def lengths(self) -> dict[str, int]:
        lengths = super().lengths
        if self.distill.max_tokens is None:
            return lengths
        return {"distill.max_tokens": self.distill.max_tokens, **lengths}
