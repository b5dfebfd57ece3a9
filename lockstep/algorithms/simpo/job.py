"""Setup of SimPO."""

from __future__ import annotations

from lockstep.algorithms.job import Job
from lockstep.algorithms.open_reference_free import open_reference_free
from lockstep.algorithms.setup import Setup
from lockstep.algorithms.simpo.options import SimPORecipe
from lockstep.losses.reference_free import SimPOLoss


def open_simpo(recipe: SimPORecipe, setup: Setup) -> Job:
    """Opens the policy and the pairs."""
    options = recipe.simpo
    return open_reference_free(recipe, setup, SimPOLoss(options.beta, options.margin, options.sft_loss_weight))
