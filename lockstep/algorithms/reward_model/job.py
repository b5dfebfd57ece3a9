"""Setup of reward models (Ouyang et al. 2022, §3.5): the chosen answer is to score higher than the
rejected one.

Bradley and Terry (1952): P(y_w ≻ y_l | x) = σ(r(x, y_w) − r(x, y_l)), whose likelihood is
maximized.
"""

from __future__ import annotations

from lockstep.algorithms.job import Job
from lockstep.algorithms.learn_pairs import open_pair_job
from lockstep.algorithms.reward_model.options import RewardModelRecipe
from lockstep.algorithms.setup import Setup
from lockstep.losses.preference import BradleyTerry


def open_reward_model(recipe: RewardModelRecipe, setup: Setup) -> Job:
    """Opens the reward model and its pairs."""
    options = recipe.reward_model
    return open_pair_job(
        recipe, setup, BradleyTerry(options.margin, options.center_rewards_coefficient)
    )
