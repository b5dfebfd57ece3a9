"""Setup of SimPO."""

from __future__ import annotations

from lockstep.algorithms.job import Job
from lockstep.algorithms.learn_pairs import open_pair_job
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.simpo.options import SimPORecipe
from lockstep.losses.preference import SimPOLoss


def open_simpo(recipe: SimPORecipe, setup: Setup) -> Job:
    """Opens the policy and the pairs."""
    options = recipe.simpo
    return open_pair_job(
        recipe, setup, SimPOLoss(options.beta, options.margin, options.sft_loss_weight)
    )
