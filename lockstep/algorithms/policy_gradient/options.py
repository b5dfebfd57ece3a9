"""Options shared by PPO and GRPO: rollouts, shaping, clipped objective, reference policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, assert_never

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from lockstep.algorithms.rewarded import RewardedRecipe
from lockstep.algorithms.roles import Inference, Load, ModelRole
from lockstep.config.optimizer import Optimizer
from lockstep.config.section import Section, rule
from lockstep.core.types import KLEstimator
from lockstep.environments.options import EnvironmentSection

if TYPE_CHECKING:
    from lockstep.losses.base import Loss
    from lockstep.losses.ppo import ClippedSurrogate


class AdaptiveKL(Section):
    """Adaptive KL: β ← β·(1 + gain·clip(KL/target − 1, −0.2, 0.2)) after each step.

    Ziegler et al. 2019, 'Fine-Tuning Language Models from Human Preferences', §2.2, where gain is
    0.1.
    """

    target: PositiveFloat = Field(description="target of train/kl, nats per token")
    gain: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.1, description="rate at which the coefficient adapts"
    )


class KL(Section):
    """KL(π ‖ π_ref) from the reference policy, the initial model; see docs/algorithms/ppo.md."""

    coef: NonNegativeFloat = Field(
        description="β: weight of the KL per token, in nats; 0: no reference is loaded"
    )
    placement: Literal["reward", "loss"] = Field(
        default="loss",
        description=(
            "reward: subtract the KL from each token's reward, so earlier tokens also pay "
            "for it; loss: add it to the loss of each token"
        ),
    )
    estimator: KLEstimator = Field(
        default="k2",
        description=(
            "formula in the loss: k2, with the gradient of KL(π ‖ π_ref), or k3 (GRPO's paper, "
            "verl's low_var_kl), which estimates that KL but has the gradient of KL(π_ref ‖ π)"
        ),
    )
    adaptive: AdaptiveKL | None = Field(
        default=None, description="adapt the coefficient to a target, starting from coef"
    )

    @property
    def in_loss(self) -> bool:
        """True if the KL is a term of the loss; otherwise it is part of the reward."""
        match self.placement:
            case "loss":
                return True
            case "reward":
                return False
            case _:
                assert_never(self.placement)

    @property
    def idle_options(self) -> dict[str, str]:
        if not self.coef:
            return dict.fromkeys(("placement", "estimator", "adaptive"), "if coef is 0")
        if self.in_loss:
            return {}
        return {"estimator": "with placement: reward, where k1 is subtracted"}


class RewardScaling(Section):
    """Linear map of rewards from the clamped source range to the target range."""

    source: tuple[float, float] = Field(default=(0.0, 1.0), description="range of the raw rewards")
    target: tuple[float, float] = Field(
        default=(-1.0, 1.0), description=("range to which they are scaled")
    )

    @rule
    def _source_is_a_range(self) -> None:
        if self.source[1] <= self.source[0]:
            raise ValueError(f"source must rise, but is {list(self.source)}")


class OverlongPenalty(Section):
    """Soft overlong punishment (DAPO, Yu et al. 2025, eq. 13) over the last `buffer` tokens."""

    buffer: PositiveInt = Field(
        description="tokens before sampling.max_tokens over which the penalty grows"
    )
    penalty: PositiveFloat = Field(
        default=1.0, description="penalty of a response of sampling.max_tokens tokens"
    )


class DynamicSampling(Section):
    """Dynamic sampling: only prompts with differing rewards (DAPO, Yu et al. 2025, §3.2)."""

    max_batches: PositiveInt = Field(
        default=10,
        description="largest number of prompt batches per step; fail if that is not enough",
    )


class CorrectionSection(Section):
    """Importance weights that correct for differences between sampler and learner."""

    kind: Literal["token_tis", "sequence_tis", "icepop"] = Field(
        description=(
            "truncated weights per token or per sequence, or mask tokens with ratios outside low "
            "to high"
        )
    )
    high: PositiveFloat = Field(
        default=2.0, description="truncate (TIS) or mask (IcePop) ratios above this"
    )
    low: NonNegativeFloat | None = Field(default=None, description="IcePop: mask ratios below this")

    @rule
    def _icepop_has_two_ends(self) -> None:
        if (self.kind == "icepop") != (self.low is not None):
            raise ValueError("low requires kind: icepop, and kind: icepop requires low")
        if self.low is not None and self.low >= self.high:
            raise ValueError(f"low must be below high, but low is {self.low} and high {self.high}")


class PolicyGradientSection(Section):
    """Options of algorithms that sample from the policy and use the clipped objective."""

    num_prompts_per_step: PositiveInt = Field(le=1_000_000, description="prompts per step")
    num_generations: PositiveInt = Field(default=1, description="responses per prompt")
    global_batch_size: PositiveInt = Field(description="responses per optimizer step")
    ppo_epochs: PositiveInt = Field(default=1, description="passes over the responses of a step")
    whiten_advantages: bool = Field(
        default=True, description="normalize the advantages of a step to mean 0 and variance 1"
    )
    clip: PositiveFloat = Field(
        default=0.2, description="ratio is clipped to [1 − clip, 1 + clip_high]"
    )
    clip_high: PositiveFloat | None = Field(default=None, description="null: as clip")
    dual_clip: Annotated[float, Field(gt=1.0)] | None = Field(
        default=None, description="bound on the ratio if the advantage is negative"
    )
    entropy_coef: NonNegativeFloat = Field(
        default=0.0, description="weight of the entropy bonus, per token"
    )
    kl: KL | None = Field(default=None, description="KL penalty; null: none")
    reward_scaling: RewardScaling | None = None
    overlong_penalty: OverlongPenalty | None = None
    truncation_penalty: NonNegativeFloat = Field(
        default=0.0, description="subtracted from the reward of a truncated response"
    )
    overlong_filtering: bool = Field(
        default=False, description="remove truncated responses from the loss"
    )
    dynamic_sampling: DynamicSampling | None = None
    correction: CorrectionSection | None = None
    one_step_ahead: bool = Field(
        default=False,
        description=(
            "sample the next step's rollouts while the current step trains; needs a correction"
        ),
    )
    max_sequence_mismatch: Annotated[float, Field(ge=1.0)] | None = Field(
        default=None, description="drop responses whose mean exp|Δ| exceeds this"
    )

    @property
    def response_count(self) -> int:
        """Number of responses per step."""
        return self.num_prompts_per_step * self.num_generations

    @property
    def sequences_per_prompt(self) -> int:
        """Responses to the same prompt in an optimizer step, on average, rounded down."""
        share = self.global_batch_size / self.response_count
        return max(1, int(self.num_generations * share))

    @property
    def update_count(self) -> int:
        """Number of optimizer steps per step."""
        return self.response_count // self.global_batch_size * self.ppo_epochs

    @property
    def has_reference(self) -> bool:
        """True if the recipe needs the reference policy."""
        return self.kl is not None and self.kl.coef > 0

    @rule
    def _older_weights_are_corrected_for(self) -> None:
        if self.one_step_ahead and self.correction is None:
            raise ValueError(
                "one_step_ahead trains on responses that are one step off-policy and needs a "
                "correction; set correction.kind, such as token_tis"
            )

    @rule
    def _rewards_can_differ(self) -> None:
        if self.dynamic_sampling is not None and self.num_generations < 2:
            raise ValueError("dynamic_sampling requires num_generations of 2 or more")

    @rule
    def _batches_divide(self) -> None:
        if self.response_count % self.global_batch_size:
            raise ValueError(
                f"num_prompts_per_step × num_generations = {self.response_count} responses is not "
                f"a multiple of global_batch_size = {self.global_batch_size}; set that to "
                f"{self.response_count}, or a divisor of it"
            )


class PolicyGradientRecipe(RewardedRecipe):
    """A recipe that samples rollouts and trains on them by the clipped objective."""

    section: ClassVar[str]
    """The key of the algorithm's own section."""
    environment: EnvironmentSection | None = Field(
        default=None,
        description=(
            "environment that answers each response until the episode ends; it also rewards, if "
            "nothing else does"
        ),
    )
    policy: Optimizer

    @property
    def idle_options(self) -> dict[str, str]:
        idle = super().idle_options
        if self.episode_judge is not None:
            idle["environment.pass_score"] = "if reward or reward_model scores the episodes"
        return idle

    @property
    def options(self) -> PolicyGradientSection:
        """The algorithm's own section."""
        raise NotImplementedError(f"{type(self).__name__} has no section")

    def policy_loss(self) -> Loss:
        """The policy's loss without the KL to the reference policy."""
        return self.build_clipped_loss()

    def build_clipped_loss(self) -> ClippedSurrogate:
        """The clipped objective (PPO, eq. 7), averaged over tokens."""
        from lockstep.losses.ppo import ClippedSurrogate

        options = self.options
        return ClippedSurrogate(
            clip_low=options.clip,
            clip_high=options.clip if options.clip_high is None else options.clip_high,
            dual_clip=options.dual_clip,
            entropy_coef=options.entropy_coef,
        )

    @property
    def max_answer_tokens(self) -> int:
        """Maximum training answer length, tokens: everything after a prompt."""
        if self.environment is None:
            return self.sampling.max_tokens
        return self.environment.max_tokens

    @property
    def policy_role(self) -> ModelRole:
        """The policy π."""
        return ModelRole("policy", "logits", self.learner, self.policy)

    @property
    def reference_role(self) -> ModelRole | None:
        """The reference policy π_ref, if there is a KL to it."""
        if self.options.has_reference:
            return self.frozen_reference
        return None

    @property
    def models(self) -> tuple[ModelRole, ...]:
        roles = self.policy_role, self.reference_role, self.reward_role
        return tuple(role for role in roles if role is not None)

    @property
    def largest_step(self) -> Load:
        longest = self.data.max_prompt_tokens + self.max_answer_tokens
        return Load(
            longest,
            1,
            self.options.global_batch_size,
            updates=self.options.update_count,
            scored=self.options.response_count,
            generated=longest,
            sampling=self.sampling.params(),
            shared=self.data.max_prompt_tokens,
            sequences_per_prompt=self.options.sequences_per_prompt,
        )

    @property
    def lengths(self) -> dict[str, int]:
        if self.environment is not None:
            return self._answer_lengths(environment=self.environment.max_tokens)
        return super().lengths

    @property
    def inference(self) -> Inference:
        return Inference(
            self.sampler,
            self.agreement,
            self.sampling,
            self.validation_sampling,
            self.options.one_step_ahead,
        )

    @property
    def episode_judge(self) -> str | None:
        """The option that overrides environment rewards; None: the environment rewards."""
        if self.reward_model is not None:
            return "reward_model"
        if self.reward is None:
            return None
        return "reward"

    @rule
    def _require_reward(self) -> None:
        count = (self.reward is not None) + (self.reward_model is not None)
        if count > 1 or (count == 0 and self.environment is None):
            raise ValueError(
                "set exactly one of reward and reward_model, or an environment that rewards, to "
                "score the responses"
            )

    @rule
    def _a_judge_has_its_time(self) -> None:
        if self.options.one_step_ahead and self.judges:
            key = next(iter(self.judges))
            raise ValueError(
                f"one_step_ahead does not support a local {key} model, which would run while the "
                f"learner trains; use a server ({key}.sampler.backend=openai), or leave "
                "one_step_ahead off"
            )

    @rule
    def _a_learned_reward_is_held(self) -> None:
        if self.reward_model is not None and self.options.kl is None:
            raise ValueError(
                "a reward model is reliable only near its training data, so set the KL penalty "
                f"explicitly: {self.section}.kl.coef=0.05, or 0 for none"
            )

    @rule
    def _episodes_have_room(self) -> None:
        if self.environment is not None:
            self.environment.require_room("sampling", self.sampling.max_tokens)
            self.environment.require_room(
                "validation_sampling", self.validation_sampling.max_tokens
            )
            for name, section in (
                ("sampling", self.sampling),
                ("validation_sampling", self.validation_sampling),
            ):
                params = section.params()
                self.environment.require_no_penalty(name, params.repetition_penalty)
                if params.counts_response:
                    raise ValueError(
                        f"{name}.presence_penalty and frequency_penalty are not supported with an "
                        "environment; leave them at 0"
                    )
            self.environment.require_judge(self.reward)
        if self.environment is not None and self.options.overlong_penalty is not None:
            raise ValueError("overlong_penalty is not supported with an environment; leave it out")
