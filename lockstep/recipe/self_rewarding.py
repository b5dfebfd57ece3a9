"""The options of self-rewarding training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from lockstep.recipe.judge import JudgeSection, MetaJudgeSection
from lockstep.recipe.machinery import Optimizer, RepeatedSampling, SamplerSection, Sampling
from lockstep.recipe.ppo import EngineSection
from lockstep.recipe.preference import PreferenceSection
from lockstep.recipe.run import Bound, Common
from lockstep.recipe.section import Probability, Section
from lockstep.recipe.sources import RewardSection

Control = Annotated[float, Field(ge=0.0, lt=1.0)]


class SelfRewarding(PreferenceSection):
    """Self-rewarding training (Yuan et al. 2024); see docs/guides/self_rewarding.md."""

    max_iterations: PositiveInt = Field(
        default=3, description="rounds; at the end of each, the policy becomes the reference"
    )
    global_batch_size: PositiveInt = Field(description="prompts, and so at most pairs, per optimizer step")
    num_responses_to_gen: Annotated[int, Field(ge=2)] = Field(default=4, description="answers to each prompt")
    length_control: Control | tuple[Control, ...] = Field(
        default=0.0,
        description="ρ: of answers scored within this share of the range, prefer the shortest and reject the longest; "
        "a list has one for each iteration",
    )
    ref_policy_kl_penalty: PositiveFloat | tuple[PositiveFloat, ...] = Field(
        default=0.1, description="β: how dear it is to move away from the reference; a list has one for each iteration"
    )
    acting_policy: Literal["reference", "current"] = Field(
        default="reference", description="who answers and judges: the policy of the iteration's beginning, or as it is"
    )
    prompt_source: Literal["same", "split"] = Field(
        default="same", description="prompts of an iteration: all, or a share of its own that no other has"
    )
    use_meta_judge: bool = Field(
        default=False,
        description="Meta-Rewarding (Wu et al. 2024): judgements are judged, too, and learned from in pairs; section "
        "meta_judge says how",
    )
    meta_judge_pcnt: Control | tuple[Control, ...] = Field(
        default=0.15,
        description="largest share of pairs of judgements among all pairs of a step; a list has one for each "
        "iteration, 0 for those without any",
    )
    meta_max_relative_pcnt: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.4,
        description="of a step's pairs of judgements, no more than this share prefer a judgement of one and the same "
        "score; one of each may always be there",
    )
    max_class_share: Probability = Field(
        default=0.9, description="warn where more of the verdicts are one and the same score"
    )
    max_leak_share: Probability = Field(
        default=0.1, description="warn where more of the answers hold a verdict, as judgements do"
    )

    def length_control_of(self, iteration: int) -> float:
        """ρ of an iteration, counted from 0."""
        return _of(self.length_control, iteration)

    def beta_of(self, iteration: int) -> float:
        """β of an iteration, counted from 0."""
        return _of(self.ref_policy_kl_penalty, iteration)

    def meta_judge_pcnt_of(self, iteration: int) -> float:
        """Largest share of pairs of judgements in an iteration, counted from 0."""
        return _of(self.meta_judge_pcnt, iteration) if self.use_meta_judge else 0.0

    @model_validator(mode="after")
    def _lists_have_one_for_each_iteration(self) -> SelfRewarding:
        for name in ("length_control", "ref_policy_kl_penalty", "meta_judge_pcnt"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) != self.max_iterations:
                raise ValueError(
                    f"{name} has {len(values)} values for max_iterations = {self.max_iterations}; give one for each "
                    "iteration, or a single one"
                )
        return self


class KnownSection(Section):
    """Judgements that are known to be right, by which the policy is measured as a judge each time it is validated."""

    judgements: str | None = Field(default=None, description="file of rows with prompt, response and score")
    comparisons: str | None = Field(
        default=None,
        description="with use_meta_judge: file of rows with prompt, response, judgement_a, judgement_b, and A or B as "
        "winner",
    )
    min_meta_accuracy: Probability = Field(
        default=0.85, description="warn where the meta-judge names the winner less often; each is asked in both orders"
    )


class SelfRewardingRecipe(Common):
    """`algorithm: self_rewarding`"""

    algorithm: Literal["self_rewarding"] = Field(description="what is run")
    self_rewarding: SelfRewarding
    judge: JudgeSection
    meta_judge: MetaJudgeSection | None = Field(default=None, description="with use_meta_judge: who judges judgements")
    sampling: Sampling
    sampler: EngineSection = SamplerSection()
    optimizer: Optimizer
    validation_reward: RewardSection | None = Field(
        default=None, description="what answers to held-out prompts are really worth; null: no validation"
    )
    validation_sampling: RepeatedSampling | None = Field(default=None, description="how they are drawn")
    known: KnownSection = KnownSection()
    acceptance: tuple[Bound, ...] = Field(default=(), description="bounds that `lockstep check RUN` reads")

    @model_validator(mode="after")
    def _answers_differ(self) -> SelfRewardingRecipe:
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature 0 gives the same answer every time, and pairs need two")
        return self

    @model_validator(mode="after")
    def _prompts_are_gone_through_once(self) -> SelfRewardingRecipe:
        if self.self_rewarding.prompt_source == "split" and self.run.max_epochs > 1:
            raise ValueError("prompt_source=split gives each iteration prompts of its own, once; leave max_epochs at 1")
        return self

    @model_validator(mode="after")
    def _judgements_can_be_learned_from(self) -> SelfRewardingRecipe:
        if self.self_rewarding.use_meta_judge != (self.meta_judge is not None):
            raise ValueError("use_meta_judge and the section meta_judge go together; say both, or none")
        if self.meta_judge is None:
            if self.known.comparisons is not None:
                raise ValueError("known.comparisons measures a meta-judge, and there is none; set use_meta_judge")
            return self
        if self.judge.path is not None or self.judge.sampler is not None:
            raise ValueError(
                "use_meta_judge trains the policy to judge, so the policy must be the judge; leave judge.path and "
                "judge.sampler out"
            )
        if self.judge.num_evals_to_average < 2:
            raise ValueError("use_meta_judge compares judgements of one answer; set judge.num_evals_to_average to 2 up")
        return self

    @model_validator(mode="after")
    def _validation_is_whole(self) -> SelfRewardingRecipe:
        if (self.validation_reward is None) != (self.validation_sampling is None):
            raise ValueError("validation_reward and validation_sampling go together; say both, or none")
        return self


def _of(values: float | tuple[float, ...], iteration: int) -> float:
    return values[iteration] if isinstance(values, tuple) else values
