"""The options of PPO with a critic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from lockstep.recipe.machinery import EngineSection, Optimizer, RepeatedSampling, SamplerSection, Sampling
from lockstep.recipe.run import Bound, Common
from lockstep.recipe.section import Probability, Section
from lockstep.recipe.sources import RewardSection
from lockstep.recipe.watch import DoctorSection


class KL(Section):
    """Divergence from the reference, the initial policy (Schulman 2020, 'Approximating KL divergence')."""

    coef: NonNegativeFloat = Field(default=0.0, description="0: the reference is never computed")
    estimator: Literal["k1", "k2", "k3"] = Field(default="k3", description="of the divergence, per token")
    placement: Literal["reward", "loss"] = Field(
        default="loss", description="subtract from each token's reward, or add to the loss"
    )
    clamp_logratio: PositiveFloat | None = Field(default=20.0, description="bound on |log π/π_ref| before the estimate")
    clamp: PositiveFloat | None = Field(default=10.0, description="bound on the estimate's magnitude")


class RewardScaling(Section):
    """Linear map of rewards: source range, clamped, to target range."""

    source: tuple[float, float] = Field(default=(0.0, 1.0), description="range of the rewards as given")
    target: tuple[float, float] = Field(default=(-1.0, 1.0), description="what that range becomes")

    @model_validator(mode="after")
    def _source_is_a_range(self) -> RewardScaling:
        if self.source[1] <= self.source[0]:
            raise ValueError(f"source must rise, but is {list(self.source)}")
        return self


class Overlong(Section):
    """Soft overlong punishment (DAPO, Yu et al. 2025, eq. 13), linear over the last `buffer` tokens of `max_tokens`."""

    buffer: PositiveInt = Field(description="tokens before sampling.max_tokens over which the penalty grows")
    penalty: PositiveFloat = Field(default=1.0, description="of a response of sampling.max_tokens tokens")


class DynamicSampling(Section):
    """Draw until the step has enough prompts whose rewards differ (DAPO, Yu et al. 2025, §3.2)."""

    max_batches: PositiveInt = Field(
        default=10, description="give up, with an error, after so many batches of prompts in one step"
    )


class Correction(Section):
    """Importance weights from sampler to learner, for engines whose log-probabilities differ from the learner's."""

    kind: Literal["token_tis", "sequence_tis", "icepop"] = Field(
        description="truncated weights per token, or per sequence, or tokens masked outside of low to high"
    )
    high: PositiveFloat = Field(default=2.0, description="truncate (TIS) or mask (IcePop) ratios above this")
    low: NonNegativeFloat | None = Field(default=None, description="IcePop: mask ratios below this")

    @model_validator(mode="after")
    def _icepop_has_two_ends(self) -> Correction:
        if (self.kind == "icepop") != (self.low is not None):
            raise ValueError("low goes with kind: icepop, and only with it")
        if self.low is not None and self.low >= self.high:
            raise ValueError(f"ratios from low to high are kept, but low is {self.low} and high {self.high}")
        return self


class PPO(Section):
    """Proximal policy optimisation with a critic (Schulman et al. 2017); see docs/algorithms/ppo.md."""

    num_prompts_per_step: PositiveInt = Field(description="prompts that a step answers")
    num_generations: PositiveInt = Field(default=1, description="responses per prompt")
    global_batch_size: PositiveInt = Field(description="responses per optimizer step")
    ppo_epochs: PositiveInt = Field(default=1, description="passes over the responses of a step")
    critic_warmup_steps: NonNegativeInt = Field(default=0, description="steps in which only the critic learns")
    gamma: Probability = Field(default=1.0, description="discount per token")
    gae_lambda: Probability = Field(default=0.95, description="λ of generalised advantage estimation")
    gae_lambda_policy: Probability | None = Field(default=None, description="for advantages, where it differs (VAPO)")
    gae_lambda_value: Probability | None = Field(
        default=None, description="for the critic's returns, where it differs (VAPO)"
    )
    length_adaptive_alpha: NonNegativeFloat = Field(
        default=0.0, description="advantages with λ = 1 − 1/(α·length) (VAPO); 0: off"
    )
    bootstrap_truncated: bool = Field(
        default=False, description="a truncated response goes on being worth V of its last state"
    )
    whiten_advantages: bool = Field(default=True, description="advantages of a step get mean 0 and variance 1")
    clip: PositiveFloat = Field(default=0.2, description="ratio is clipped to [1 − clip, 1 + clip_high]")
    clip_high: PositiveFloat | None = Field(default=None, description="null: as clip")
    dual_clip: Annotated[float, Field(gt=1.0)] | None = Field(
        default=None, description="bound on the ratio where the advantage is negative"
    )
    entropy_coef: NonNegativeFloat = Field(default=0.0, description="weight of the entropy bonus, per token")
    value_clip: PositiveFloat | None = Field(default=0.2, description="null: plain squared error")
    kl: KL = KL()
    reward_scaling: RewardScaling | None = None
    overlong_penalty: Overlong | None = None
    truncation_penalty: NonNegativeFloat = Field(
        default=0.0, description="subtracted from the reward of a truncated response"
    )
    overlong_filtering: bool = Field(default=False, description="truncated responses leave the loss")
    dynamic_sampling: DynamicSampling | None = None
    correction: Correction | None = None
    one_step_ahead: bool = Field(
        default=False,
        description="while a step learns, the sampler draws what the next step learns from; needs a correction",
    )
    max_sequence_mismatch: Annotated[float, Field(ge=1.0)] | None = Field(
        default=None, description="drop responses whose mean exp|Δ| exceeds this"
    )

    @model_validator(mode="after")
    def _one_lambda_for_advantages(self) -> PPO:
        if self.length_adaptive_alpha and self.gae_lambda_policy is not None:
            raise ValueError("length_adaptive_alpha sets λ by length, so gae_lambda_policy must be null")
        return self

    @model_validator(mode="after")
    def _older_weights_are_corrected_for(self) -> PPO:
        if self.one_step_ahead and self.correction is None:
            raise ValueError(
                "one_step_ahead learns from responses of weights that are a step old, so they must be weighed; set "
                "ppo.correction.kind=token_tis, or another kind"
            )
        return self

    @model_validator(mode="after")
    def _rewards_can_differ(self) -> PPO:
        if self.dynamic_sampling is not None and self.num_generations < 2:
            raise ValueError(
                "dynamic_sampling compares the responses to a prompt, so num_generations must be 2 or more"
            )
        return self


class PPORecipe(Common):
    """`algorithm: ppo`"""

    algorithm: Literal["ppo"] = Field(description="what is run")
    ppo: PPO
    reward: RewardSection
    sampling: Sampling
    validation_sampling: RepeatedSampling
    sampler: EngineSection = SamplerSection()
    doctor: DoctorSection = DoctorSection()
    policy: Optimizer
    critic: Optimizer
    acceptance: tuple[Bound, ...] = Field(default=(), description="bounds that `lockstep check RUN` reads")

    @model_validator(mode="after")
    def _sampler_and_learner_are_apart(self) -> PPORecipe:
        if self.ppo.one_step_ahead and self.doctor.watch:
            raise ValueError(
                "doctor.watch compares sampler and learner at the same weights, and ppo.one_step_ahead keeps them a "
                "step apart; set doctor.watch=false"
            )
        if self.ppo.one_step_ahead and self.sampler.vllm.sleep:
            raise ValueError(
                "sampler.vllm.sleep gives the learner memory while nothing is generated, and with ppo.one_step_ahead "
                "both work at once; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _batches_divide(self) -> PPORecipe:
        samples, batch = self.ppo.num_prompts_per_step * self.ppo.num_generations, self.ppo.global_batch_size
        if samples % batch:
            raise ValueError(
                f"ppo.num_prompts_per_step × num_generations = {samples} responses do not divide into "
                f"ppo.global_batch_size = {batch}"
            )
        return self
