"""The options of self-rewarding training."""

from __future__ import annotations

from typing import Annotated, Literal, final

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from lockstep.algorithms.preference_options import PreferenceSection
from lockstep.algorithms.rewarded import SampledRecipe
from lockstep.algorithms.roles import Load, ModelRole
from lockstep.config import (
    Optimizer,
    RepeatedSampling,
    RowsPath,
    Sampling,
    Section,
)
from lockstep.config.section import rule
from lockstep.judge.options import AskedSection, JudgeSection, MetaJudgeSection
from lockstep.rewards.options import RewardSection

FractionBelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]


class SelfRewardingSection(PreferenceSection):
    """Self-rewarding training (Yuan et al. 2024); see docs/guides/self_rewarding.md."""

    max_iterations: PositiveInt = Field(
        le=10_000,
        default=3,
        description="number of iterations; after each, the policy becomes the reference",
    )
    global_batch_size: PositiveInt = Field(
        description="prompts, and thus at most this number of pairs, per optimizer step"
    )
    num_responses_to_gen: Annotated[int, Field(ge=2)] = Field(
        default=4, description="answers per prompt"
    )
    length_control: FractionBelowOne | tuple[FractionBelowOne, ...] = Field(
        default=0.0,
        description=(
            "ρ: among answers scored within this share of the range, prefer the shortest "
            "and reject the longest; a list: one per iteration"
        ),
    )
    ref_policy_kl_penalty: PositiveFloat | tuple[PositiveFloat, ...] = Field(
        default=0.1,
        description=(
            "β: strength of the penalty for leaving the reference; a list: one per iteration"
        ),
    )
    prompt_source: Literal["same", "split", "new"] = Field(
        default="same",
        description=(
            "prompts of an iteration: all, a separate share, or new ones written by its "
            "initial policy (`new_prompts`)"
        ),
    )
    first_iteration_sft: bool = Field(
        default=False,
        description="run SFT on the data's answers in the first iteration, without judging",
    )
    use_meta_judge: bool = Field(
        default=False,
        description=(
            "Meta-Rewarding (Wu et al. 2024): also judge judgments and train on pairs of "
            "them; see section meta_judge"
        ),
    )
    meta_judge_pcnt: FractionBelowOne | tuple[FractionBelowOne, ...] = Field(
        default=0.15,
        description=(
            "largest share of pairs of judgments among the pairs of a step; a list: one "
            "per iteration, 0 for none"
        ),
    )
    meta_max_relative_pcnt: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.4,
        description=(
            "largest share of a step's pairs of judgments whose preferred judgments have "
            "the same score; one of each score is always allowed"
        ),
    )

    def length_control_of(self, iteration: int) -> float:
        """ρ of an iteration, counted from 0."""
        return _select_iteration_value(self.length_control, iteration)

    def beta_of(self, iteration: int) -> float:
        """β of an iteration, counted from 0."""
        return _select_iteration_value(self.ref_policy_kl_penalty, iteration)

    def room_for_judge_pairs(self, iteration: int, answer_pairs: int) -> int:
        """Maximum number of judgment pairs for a number of answer pairs."""
        share = (
            _select_iteration_value(self.meta_judge_pcnt, iteration) if self.use_meta_judge else 0.0
        )
        return int(share / (1 - share) * answer_pairs + 1e-9)

    @rule
    def _an_iteration_is_left(self) -> None:
        if self.first_iteration_sft and self.max_iterations == 1:
            raise ValueError("first_iteration_sft takes the only iteration; raise max_iterations")

    @rule
    def _lists_have_one_for_each_iteration(self) -> None:
        for name in ("length_control", "ref_policy_kl_penalty", "meta_judge_pcnt"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) != self.max_iterations:
                raise ValueError(
                    f"{name} has {len(values)} values for max_iterations = {self.max_iterations}; "
                    "set one per iteration, or a single value"
                )

    @rule
    def _judge_pairs_are_asked_for(self) -> None:
        chosen = self.model_fields_set
        for name in ("meta_judge_pcnt", "meta_max_relative_pcnt"):
            if name in chosen and "use_meta_judge" not in chosen:
                raise ValueError(
                    f"{name} applies to pairs of judgments; set use_meta_judge to true or false"
                )

    @rule
    def _judge_pairs_have_room(self) -> None:
        rewarded = range(int(self.first_iteration_sft), self.max_iterations)
        room = any(
            self.room_for_judge_pairs(iteration, self.global_batch_size) for iteration in rewarded
        )
        if self.use_meta_judge and not room:
            raise ValueError(
                "meta_judge_pcnt is too small for one pair of judgments in a batch of "
                f"{self.global_batch_size} pairs; raise it or global_batch_size, or set "
                "use_meta_judge=false"
            )


class KnownSection(Section):
    """Ground-truth judgments that measure how well the policy judges."""

    judgments: RowsPath | None = Field(
        default=None, description="file of rows with prompt, response and score"
    )
    comparisons: RowsPath | None = Field(
        default=None,
        description="with use_meta_judge: file of rows with prompt, response, judgement_a, "
        "judgement_b, and A or B as winner",
    )


class WritingSampling(Sampling):
    """The sampling distribution of new prompts, as in Yuan et al. 2024."""

    temperature: NonNegativeFloat = Field(
        default=0.6, description="0: greedy, so only the examples vary"
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.9,
        description=(
            "nucleus sampling: smallest set of likeliest tokens with this total probability"
        ),
    )


class NewPromptsSection(Section):
    """New prompts that the policy writes from examples at the start of an iteration."""

    count: PositiveInt | None = Field(
        default=None, description="number of prompts per iteration; null: the number in the data"
    )
    template: str | None = Field(
        default=None,
        description=(
            "the request, with {example_1}, {example_2} … for prompts of the data; null: "
            "the default, with eight"
        ),
    )
    sampling: WritingSampling
    max_prompt_tokens: PositiveInt = Field(
        description="longest request, examples included; longer ones are counted, not sent"
    )
    max_attempts: PositiveInt = Field(
        default=4,
        description=("most requests per wanted prompt; too few prompts stop the run"),
    )


@final
class SelfRewardingRecipe(SampledRecipe):
    """`algorithm: self_rewarding`"""

    steps_and_epochs = True  # epochs are per iteration, steps per run
    self_rewarding: SelfRewardingSection
    judge: JudgeSection
    meta_judge: MetaJudgeSection | None = Field(
        default=None, description="with use_meta_judge: judge of judgments"
    )
    new_prompts: NewPromptsSection | None = Field(
        default=None, description="writing of new prompts, with self_rewarding.prompt_source=new"
    )
    sampling: Sampling  # pyright: ignore[reportIncompatibleVariableOverride] — frozen, so safe to narrow
    optimizer: Optimizer
    validation_reward: RewardSection | None = Field(
        default=None,
        description=("reward of held-out responses; null: only the training judges score them"),
    )
    validation_sampling: RepeatedSampling | None = Field(
        default=None, description="sampling of held-out responses"
    )
    known: KnownSection = KnownSection()

    @rule
    def _answers_differ(self) -> None:
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature 0 gives identical answers, which form no pair; raise it"
            )

    @rule
    def _prompts_are_gone_through_once(self) -> None:
        if self.self_rewarding.prompt_source == "split" and self.run.max_epochs > 1:
            raise ValueError(
                "prompt_source=split uses each prompt once, in one iteration; leave max_epochs at 1"
            )

    @rule
    def _new_prompts_are_the_judges(self) -> None:
        if (self.self_rewarding.prompt_source == "new") != (self.new_prompts is not None):
            raise ValueError(
                "new_prompts requires self_rewarding.prompt_source=new; set both or neither "
                "(docs/guides/self_rewarding.md shows the section)"
            )

    @rule
    def _judgments_can_be_learned_from(self) -> None:
        if self.self_rewarding.use_meta_judge != (self.meta_judge is not None):
            raise ValueError(
                "self_rewarding.use_meta_judge and the section meta_judge require each other; set "
                "both or neither (the recipe self_rewarding_meta_llama3_8b shows the section)"
            )
        if self.meta_judge is None:
            if self.known.comparisons is not None:
                raise ValueError("known.comparisons requires use_meta_judge; set it to true")
            return
        if not self.judge.is_policy:
            raise ValueError(
                "use_meta_judge trains the policy to judge, so the policy must be the judge; "
                "leave judge.path and judge.sampler out"
            )
        if self.judge.num_evals_to_average < 2:
            raise ValueError(
                "use_meta_judge compares judgments of the same answer; raise "
                "judge.num_evals_to_average to 2"
            )

    @rule
    def _validation_is_whole(self) -> None:
        self._require_whole_validation()

    @property
    def policy_role(self) -> ModelRole:
        """The policy π."""
        return ModelRole("policy", "logits", self.learner, self.optimizer)

    @property
    def reference_role(self) -> ModelRole:
        """The reference policy π_ref: the policy at the start of an iteration."""
        return ModelRole("reference", "logits", self.learner, follows=True)

    @property
    def models(self) -> tuple[ModelRole, ...]:
        return self.policy_role, self.reference_role

    @property
    def judges(self) -> dict[str, AskedSection]:
        sections = {"judge": self.judge, "meta_judge": self.meta_judge}
        found: dict[str, AskedSection] = {}
        for name, section in sections.items():
            if section is not None and section.has_engine:
                found[name] = section
        return found

    @rule
    def _one_judge_judges(self) -> None:
        section = self.validation_reward
        for key, leaf in section.leaf_sections("validation_reward") if section is not None else ():
            if leaf.judge is not None:
                raise ValueError(
                    f"{key}.judge: the section judge already judges; use a different reward for "
                    f"{key}"
                )

    @property
    def largest_step(self) -> Load:
        rows = self.self_rewarding.global_batch_size
        answer = self.data.max_prompt_tokens + self.sampling.max_tokens
        judged: list[int] = []
        for section in (self.judge, self.meta_judge):
            if section and section.is_policy:
                judged.append(section.max_prompt_tokens + section.sampling.max_tokens)
        longest = max(answer, judged[0]) if self.meta_judge is not None else answer
        return Load(longest, 2, rows, scored=rows, generated=max([answer, *judged]))


def _select_iteration_value(values: float | tuple[float, ...], iteration: int) -> float:
    if isinstance(values, tuple):
        return values[iteration]
    return values
