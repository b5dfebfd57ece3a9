"""The options of self-rewarding training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, final

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from lockstep.algorithms.base import Algorithm, BuiltInAlgorithm
from lockstep.algorithms.preference_options import PreferenceSection
from lockstep.algorithms.roles import Inference, Load, ModelRole
from lockstep.config import (
    EngineSection,
    ModelFolder,
    Optimizer,
    Probability,
    RepeatedSampling,
    RowsPath,
    SamplerSection,
    Sampling,
    Section,
    registry,
)
from lockstep.config.loading import load_section
from lockstep.config.recipe_files import Layer
from lockstep.config.section import rule
from lockstep.judge.new_prompt_options import NewPromptsSection
from lockstep.judge.options import AskedSection, Expression, JudgeSection, MetaJudgeSection
from lockstep.monitor.options import AgreementSection
from lockstep.rewards.options import RewardSection

Control = Annotated[float, Field(ge=0.0, lt=1.0)]

FIRST_ITERATION = "self_rewarding.first_iteration"
_SHARED: tuple[str, ...] = ("seed", "model", "data", "learner", "cluster", "optimizer")
"""Sections in which the first iteration follows the recipe."""


class SelfRewardingSection(PreferenceSection):
    """Self-rewarding training (Yuan et al. 2024); see docs/guides/self_rewarding.md."""

    max_iterations: PositiveInt = Field(
        le=10_000, default=3, description="rounds; at the end of each, the policy becomes the reference"
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
        default="reference", description="the acting policy: that of the iteration's beginning, or the current one"
    )
    prompt_source: Literal["same", "split", "new"] = Field(
        default="same",
        description="prompts of an iteration: all, a share of its own that no other has, or new ones that the policy "
        "of its beginning writes (`new_prompts`)",
    )
    first_iteration: dict[str, JsonValue] | None = Field(
        default=None,
        description="another algorithm for the first iteration, one that samples nothing: {algorithm: sft} learns the "
        "data's own answers; its options may follow, such as sft: {max_tokens: 512}; null: none",
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
    leak_pattern: Expression | None = Field(
        default=None,
        description="regular expression of what tells a judgement from an answer; null: a verdict that is announced",
    )

    def length_control_of(self, iteration: int) -> float:
        """ρ of an iteration, counted from 0."""
        return _of(self.length_control, iteration)

    def beta_of(self, iteration: int) -> float:
        """β of an iteration, counted from 0."""
        return _of(self.ref_policy_kl_penalty, iteration)

    def room_for_judge_pairs(self, iteration: int, answer_pairs: int) -> int:
        """Greatest number of pairs of judgements beside a number of pairs of answers, by their share of all pairs."""
        share = _of(self.meta_judge_pcnt, iteration) if self.use_meta_judge else 0.0
        return int(share / (1 - share) * answer_pairs + 1e-9)

    @rule
    def _an_iteration_is_left(self) -> None:
        if self.first_iteration is not None and self.max_iterations == 1:
            raise ValueError("first_iteration takes the only iteration; raise max_iterations, or run that algorithm")

    @rule
    def _lists_have_one_for_each_iteration(self) -> None:
        for name in ("length_control", "ref_policy_kl_penalty", "meta_judge_pcnt"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) != self.max_iterations:
                raise ValueError(
                    f"{name} has {len(values)} values for max_iterations = {self.max_iterations}; give one for each "
                    "iteration, or a single one"
                )

    @rule
    def _judge_pairs_are_asked_for(self) -> None:
        names = [name for name in ("meta_judge_pcnt", "meta_max_relative_pcnt") if name in self.model_fields_set]
        if names and "use_meta_judge" not in self.model_fields_set:
            raise ValueError(f"{names[0]} is of pairs of judgements; say use_meta_judge as well, true or false")

    @rule
    def _judge_pairs_have_room(self) -> None:
        rewarded = range(0 if self.first_iteration is None else 1, self.max_iterations)
        room = any(self.room_for_judge_pairs(iteration, self.global_batch_size) for iteration in rewarded)
        if self.use_meta_judge and not room:
            raise ValueError(
                f"meta_judge_pcnt leaves no room for a pair of judgements beside {self.global_batch_size} pairs of "
                "answers; raise it or global_batch_size, or turn use_meta_judge off"
            )


class KnownSection(Section):
    """Judgements that are known to be right, on which the policy is validated as a judge."""

    judgements: RowsPath | None = Field(default=None, description="file of rows with prompt, response and score")
    comparisons: RowsPath | None = Field(
        default=None,
        description="with use_meta_judge: file of rows with prompt, response, judgement_a, judgement_b, and A or B as "
        "winner",
    )
    min_meta_accuracy: Probability = Field(
        default=0.85, description="warn where the meta-judge names the winner less often; each is asked in both orders"
    )


@final
class SelfRewardingRecipe(BuiltInAlgorithm):
    """`algorithm: self_rewarding`"""

    steps_and_epochs = True  # epochs are of an iteration, steps of the run
    self_rewarding: SelfRewardingSection
    judge: JudgeSection | None = Field(default=None, description="the judge of answers")
    reward_model: ModelFolder | None = Field(
        default=None,
        description="in place of `judge`: a reward model of `algorithm: reward_model` scores answers",
    )
    meta_judge: MetaJudgeSection | None = Field(default=None, description="with use_meta_judge: judge of judgements")
    verifier: RewardSection | None = Field(
        default=None,
        description="programs that score answers in place of the judge, of rows that name one; null: all are judged",
    )
    new_prompts: NewPromptsSection | None = Field(
        default=None, description="how prompts are written, with self_rewarding.prompt_source=new"
    )
    sampling: Sampling
    sampler: EngineSection = SamplerSection()
    agreement: AgreementSection = AgreementSection()
    optimizer: Optimizer
    validation_reward: RewardSection | None = Field(
        default=None,
        description="the reward of answers to held-out prompts; null: only the judges of training judge them",
    )
    validation_sampling: RepeatedSampling | None = Field(default=None, description="the distribution of those answers")
    known: KnownSection = KnownSection()

    @rule
    def _require_judge(self) -> None:
        if (self.judge is None) == (self.reward_model is None):
            raise ValueError("say one of judge and reward_model, which scores the answers")
        if self.judge is None and self.verifier is not None:
            raise ValueError("verifier scores on the judge's scale, and a reward model has none; leave one of them out")
        if self.judge is None and self.known.judgements is not None:
            raise ValueError("known.judgements measures a judge, and a reward model is none; leave one of them out")

    @rule
    def _answers_differ(self) -> None:
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature 0 gives the same answer every time, and pairs need two")

    @rule
    def _prompts_are_gone_through_once(self) -> None:
        if self.self_rewarding.prompt_source == "split" and self.run.max_epochs > 1:
            raise ValueError("prompt_source=split gives each iteration prompts of its own, once; leave max_epochs at 1")

    @rule
    def _new_prompts_are_the_judges(self) -> None:
        written = self.self_rewarding.prompt_source == "new"
        if written != (self.new_prompts is not None):
            raise ValueError(
                "new_prompts goes with self_rewarding.prompt_source=new; say both, or none "
                "(docs/guides/self_rewarding.md shows the section)"
            )
        if written and self.verifier is not None:
            raise ValueError(
                "verifier scores rows of the data, but with prompt_source=new no row is answered; leave one of them out"
            )

    @rule
    def _first_iteration_can_be_run(self) -> None:
        if self.self_rewarding.first_iteration is not None:
            build_first_recipe(self, self.self_rewarding.first_iteration)

    @rule
    def _judgements_can_be_learned_from(self) -> None:
        if self.self_rewarding.use_meta_judge != (self.meta_judge is not None):
            raise ValueError(
                "self_rewarding.use_meta_judge and the section meta_judge go together; say both, or none (the recipe "
                "self_rewarding_meta_llama3_8b shows the section)"
            )
        if self.meta_judge is None:
            if self.known.comparisons is not None:
                raise ValueError("known.comparisons measures a meta-judge, and there is none; set use_meta_judge")
            return
        if self.judge is None or not self.judge.is_policy:
            raise ValueError(
                "use_meta_judge trains the policy to judge, so the policy must be the judge; leave judge.path and "
                "judge.sampler out"
            )
        if self.judge.num_evals_to_average < 2:
            raise ValueError("use_meta_judge compares judgements of one answer; raise judge.num_evals_to_average to 2")

    @rule
    def _validation_is_whole(self) -> None:
        if (self.validation_reward is None) != (self.validation_sampling is None):
            raise ValueError("validation_reward and validation_sampling go together; say both, or none")

    @property
    def policy_role(self) -> ModelRole:
        """The policy π."""
        return ModelRole("policy", "logits", self.learner, self.optimizer)

    @property
    def reference_role(self) -> ModelRole:
        """The reference policy π_ref: the policy of an iteration's beginning."""
        return ModelRole("reference", "logits", self.learner, follows=True)

    @property
    def reward_role(self) -> ModelRole | None:
        """The reward model, if one scores in place of a judge."""
        return self._read_reward_model(self.reward_model)

    @property
    def models(self) -> tuple[ModelRole, ...]:
        reward = self.reward_role
        return self.policy_role, self.reference_role, *(() if reward is None else (reward,))

    @property
    def judges(self) -> dict[str, AskedSection]:
        sections = {"judge": self.judge, "meta_judge": self.meta_judge}
        return {name: section for name, section in sections.items() if section is not None and section.has_engine}

    @rule
    def _one_judge_judges(self) -> None:
        for option, section in self.rewards.items():
            for key, leaf in section.leaves(option) if section is not None else ():
                if leaf.judge is not None:
                    raise ValueError(f"{key}.judge: here the section judge judges; let {key} be another reward")
                if leaf.verifier is not None and leaf is not section:
                    raise ValueError(f"{key}: rows that a judge rewards are named by type: by_row alone, not in a sum")

    @property
    def largest_step(self) -> Load:
        rows = self.self_rewarding.global_batch_size
        answer = self.data.max_prompt_tokens + self.sampling.max_tokens
        asked = [section for section in (self.judge, self.meta_judge) if section and section.is_policy]
        judged = [section.max_prompt_tokens + section.sampling.max_tokens for section in asked]
        longest = max(answer, judged[0]) if self.meta_judge is not None else answer
        return Load(longest, 2, rows, scored=rows, generated=max([answer, *judged]))

    @property
    def lengths(self) -> dict[str, int]:
        return self._answer_lengths(
            sampling=self.sampling.max_tokens,
            validation_sampling=self.validation_sampling and self.validation_sampling.max_tokens,
        )

    @property
    def inference(self) -> Inference:
        return Inference(self.sampler, self.agreement, self.sampling, self.validation_sampling)

    @property
    def rewards(self) -> dict[str, RewardSection | None]:
        return {"verifier": self.verifier, "validation_reward": self.validation_reward}


def build_first_recipe(recipe: SelfRewardingRecipe, said: Mapping[str, JsonValue]) -> Algorithm:
    """The recipe of the first iteration: the sections it shares with `recipe`, and what `said` adds.

    Its own section follows in rows per step and in the longest sequence, unless `said` has them.

    Raises:
        RecipeError: One of its options is wrong.
        ValueError: There is no such algorithm, or it cannot take the first iteration.
    """
    name = str(said.get("algorithm"))
    found = registry.find(name)
    if found is None or not issubclass(found, Algorithm):
        raise ValueError(f"{FIRST_ITERATION}.algorithm is {name}, and no algorithm; say sft")
    rows, longest = recipe.self_rewarding.global_batch_size, recipe.data.max_prompt_tokens + recipe.sampling.max_tokens
    section = said.get(name, {})
    shared = recipe.model_dump(mode="json", include=set(_SHARED) & found.model_fields.keys())
    shared["data"].pop("answer")  # of a reward, which the rows of the first iteration have not
    own = {"global_batch_size": rows, "max_tokens": longest, **(section if isinstance(section, dict) else {})}
    first = load_section(found, Layer(FIRST_ITERATION, {**shared, "run": {"max_steps": 1}, **said, name: own}))
    if first.inference is not None:
        raise ValueError(f"{FIRST_ITERATION}: {name} samples; choose an algorithm that learns from rows, such as sft")
    if first.models[0] != recipe.policy_role:
        raise ValueError(f"{FIRST_ITERATION} trains the same policy; leave model, learner and optimizer out of it")
    return first


def _of(values: float | tuple[float, ...], iteration: int) -> float:
    return values[iteration] if isinstance(values, tuple) else values
