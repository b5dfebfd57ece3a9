"""The options of distillation."""

from __future__ import annotations

from typing import Annotated, final

from pydantic import Field, PositiveInt

from lockstep.algorithms.base import BuiltInAlgorithm
from lockstep.algorithms.roles import Inference, Load, ModelRole
from lockstep.config import EngineSection, ModelFolder, Optimizer, RepeatedSampling, SamplerSection, Sampling, Section
from lockstep.config.section import rule
from lockstep.core.types import Divergence
from lockstep.monitor.options import AgreementSection
from lockstep.rewards.options import RewardSection


class DistillSection(Section):
    """Distillation (Hinton et al. 2015; Agarwal et al. 2024); see docs/algorithms/distill.md."""

    on_policy: bool = Field(
        default=True, description="learn from responses of the student; false: from the answers of the data"
    )
    num_prompts_per_step: PositiveInt = Field(description="rows that a step learns from")
    num_generations: PositiveInt = Field(default=1, description="responses per prompt, with on_policy")
    global_batch_size: PositiveInt = Field(description="responses or answers per optimizer step")
    max_tokens: PositiveInt | None = Field(
        default=None, description="longest prompt and answer together, without on_policy"
    )
    kl_type: Divergence = Field(
        default="reverse",
        description="KL(teacher ‖ student), KL(student ‖ teacher), their weighted sum, or the divergence of Jensen and "
        "Shannon",
    )
    mixed_kl_weight: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None, description="with mixed: of the forward KL; with jsd: of the teacher in the mixture"
    )
    top_k: PositiveInt | None = Field(
        default=None, description="learn the teacher's likeliest tokens at each place; null: the whole vocabulary"
    )
    zero_outside_topk: bool = Field(
        default=False,
        description="with top_k: the student is to give nothing to other tokens; false: only the named ones matter",
    )
    teacher_field: str | None = Field(
        default=None, description="field of a row that names its teacher, where there are several"
    )

    @property
    def responses(self) -> int:
        """Responses of a step."""
        return self.num_prompts_per_step * self.num_generations

    @property
    def updates(self) -> int:
        """Optimizer steps of a step."""
        return self.responses // self.global_batch_size

    @rule
    def _batches_divide(self) -> None:
        if self.responses % self.global_batch_size:
            raise ValueError(
                f"num_prompts_per_step × num_generations = {self.responses} do not divide into global_batch_size = "
                f"{self.global_batch_size}"
            )

    @rule
    def _answers_are_there_once(self) -> None:
        if self.on_policy == (self.max_tokens is not None):
            raise ValueError("max_tokens is of the data's answers: say it with on_policy=false, and only then")
        if not self.on_policy and self.num_generations > 1:
            raise ValueError("num_generations is of the student's responses, and goes with on_policy")

    @rule
    def _require_top_k(self) -> None:
        if self.zero_outside_topk and self.top_k is None:
            raise ValueError("zero_outside_topk is about tokens that are not among the top_k; say top_k as well")
        if self.top_k == 1 and not self.zero_outside_topk:
            raise ValueError(
                "top_k=1 compares distributions over one token, which are always equal, so nothing would be learned; "
                "set top_k to 2 or more, or zero_outside_topk=true"
            )

    @rule
    def _weights_weigh(self) -> None:
        if (self.kl_type in ("mixed", "jsd")) != (self.mixed_kl_weight is not None):
            raise ValueError("mixed_kl_weight is for kl_type mixed or jsd: say it with them, and only then")


@final
class DistillRecipe(BuiltInAlgorithm):
    """`algorithm: distill`"""

    distill: DistillSection
    teachers: dict[str, ModelFolder] = Field(description="models to learn from, each under a name", min_length=1)
    sampling: Sampling | None = Field(default=None, description="distribution of student rollouts, with on_policy")
    sampler: EngineSection = SamplerSection()
    agreement: AgreementSection = AgreementSection()
    optimizer: Optimizer
    validation_reward: RewardSection | None = Field(
        default=None, description="the reward of answers to held-out prompts; null: no validation"
    )
    validation_sampling: RepeatedSampling | None = Field(default=None, description="the distribution of those answers")

    @rule
    def _each_row_has_a_teacher(self) -> None:
        if (len(self.teachers) > 1) != (self.distill.teacher_field is not None):
            raise ValueError("distill.teacher_field names a row's teacher: say it with several teachers, and only then")

    @rule
    def _require_answers(self) -> None:
        if self.distill.on_policy != (self.sampling is not None):
            raise ValueError("sampling is of the student's responses: say it with distill.on_policy, and only then")

    @rule
    def _validation_is_whole(self) -> None:
        if self.data.validation is not None and self.validation_reward is None:
            raise ValueError("data.validation has prompts whose answers nothing scores; set validation_reward")
        if (self.validation_reward is None) != (self.validation_sampling is None):
            raise ValueError("validation_reward and validation_sampling go together; say both, or none")

    @property
    def policy_role(self) -> ModelRole:
        """The student."""
        return ModelRole("policy", "logits", self.learner, self.optimizer)

    @property
    def teacher_roles(self) -> dict[str, ModelRole]:
        """The teachers, by their names in the recipe."""
        return {
            name: ModelRole(f"teacher {name}", "logits", self.learner, path=section.path)
            for name, section in self.teachers.items()
        }

    @property
    def models(self) -> tuple[ModelRole, ...]:
        return self.policy_role, *self.teacher_roles.values()

    @property
    def largest_step(self) -> Load:
        its, prompt = self.distill, self.data.max_prompt_tokens
        sections = [section for section in (self.sampling, self.validation_sampling) if section is not None]
        generated = max((prompt + section.max_tokens for section in sections), default=0)
        return Load(
            its.max_tokens or generated,
            1,
            its.global_batch_size,
            its.updates,
            its.responses,
            generated,
        )

    @property
    def lengths(self) -> dict[str, int]:
        found = {} if self.distill.max_tokens is None else {"distill.max_tokens": self.distill.max_tokens}
        return found | self._answer_lengths(
            sampling=self.sampling and self.sampling.max_tokens,
            validation_sampling=self.validation_sampling and self.validation_sampling.max_tokens,
        )

    @property
    def inference(self) -> Inference:
        return Inference(self.sampler, self.agreement, self.sampling, self.validation_sampling)

    @property
    def rewards(self) -> dict[str, RewardSection | None]:
        return {"validation_reward": self.validation_reward}
