"""Setup of reward model training (Ouyang et al. 2022, §3.5).

Maximizes the likelihood of the Bradley-Terry model (1952): P(y_w ≻ y_l | x) = σ(r(x, y_w) − r(x,
y_l)).
"""

from __future__ import annotations

from lockstep.algorithms.job import Job
from lockstep.algorithms.learn_pairs import open_pair_job
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.setup import Setup
from lockstep.losses.preference import BradleyTerry


def open_reward_model(recipe: RewardModelRecipe, setup: Setup) -> Job:
    """Opens the reward model and the pairs."""
    options = recipe.reward_model
    return open_pair_job(
        recipe, setup, BradleyTerry(options.margin, options.center_rewards_coefficient)
    )
