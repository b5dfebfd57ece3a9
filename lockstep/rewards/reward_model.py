"""Rewards by a reward model, which reads exactly the sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.borders import require_finite
from lockstep.learners.base import Learner


@dataclass(frozen=True)
class RewardModelScorer:
    """Scores a batch of responses.

    Attributes:
        learner: The frozen reward model.
    """

    learner: Learner

    def __call__(self, batch: Batch) -> Tensor:
        """Computes r(x, y) of each sequence, fp32 [B].

        Raises:
            NotFiniteError: A reward is NaN or infinite.
        """
        _, reward_B = self.learner.values(replace(batch, sampling=None))
        require_finite("the reward model's scores", batch, reward_B)
        return reward_B
