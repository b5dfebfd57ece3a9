"""Base classes of recipes that sample answers, with and without training rewards."""

from __future__ import annotations

from pydantic import Field

from lockstep.algorithms.base import BuiltInAlgorithm
from lockstep.algorithms.roles import Inference, ModelRole
from lockstep.config import EngineSection, ModelFolder, RepeatedSampling, SamplerSection, Sampling
from lockstep.monitor.options import AgreementSection
from lockstep.rewards.options import RewardSection


class SampledRecipe(BuiltInAlgorithm):
    """A recipe that samples answers, in training or only in validation."""

    sampling: Sampling | None
    sampler: EngineSection = SamplerSection()
    agreement: AgreementSection = AgreementSection()
    validation_reward: RewardSection | None = Field(
        default=None,
        description="reward of held-out responses; null: none",
    )
    validation_sampling: RepeatedSampling | None

    @property
    def lengths(self) -> dict[str, int]:
        asked = self.validation_sampling if self.data.has_validation else None
        return self._answer_lengths(
            sampling=self.sampling and self.sampling.max_tokens,
            validation_sampling=asked and asked.max_tokens,
        )

    @property
    def inference(self) -> Inference:
        return Inference(self.sampler, self.agreement, self.sampling, self.validation_sampling)

    @property
    def rewards(self) -> dict[str, RewardSection | None]:
        return {"validation_reward": self.validation_reward}

    def _require_whole_validation(self) -> None:
        """Raises ValueError if validation samples answers without a reward, or the reverse."""
        if (self.validation_reward is None) != (self.validation_sampling is None):
            raise ValueError(
                "validation_reward and validation_sampling require each other; set both or neither"
            )


class RewardedRecipe(SampledRecipe):
    """A recipe that samples answers and trains on their rewards."""

    reward: RewardSection | None = None
    reward_model: ModelFolder | None = Field(
        default=None,
        description=(
            "instead of `reward`: a reward model, trained with `algorithm: reward_model`, that "
            "scores responses"
        ),
    )
    validation_reward: RewardSection | None = Field(
        default=None, description="reward of held-out responses; null: as in training"
    )
    sampling: Sampling  # pyright: ignore[reportIncompatibleVariableOverride] — frozen, so safe to narrow
    validation_sampling: RepeatedSampling  # pyright: ignore[reportIncompatibleVariableOverride] — frozen, so safe to narrow

    @property
    def idle_options(self) -> dict[str, str]:
        idle = super().idle_options
        if not self.data.has_validation:
            idle["validation_reward"] = "if data has no validation rows"
        idle["data.completion"] = "if responses are sampled"
        return idle

    @property
    def reward_role(self) -> ModelRole | None:
        """The role of the reward model; None without one."""
        return self._read_reward_model(self.reward_model)

    @property
    def rewards(self) -> dict[str, RewardSection | None]:
        return {"reward": self.reward, "validation_reward": self.validation_reward}
