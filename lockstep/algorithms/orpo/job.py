"""Setup of ORPO."""

from __future__ import annotations

from lockstep.algorithms.job import Job
from lockstep.algorithms.open_reference_free import open_reference_free
from lockstep.algorithms.orpo.options import ORPORecipe
from lockstep.algorithms.setup import Setup
from lockstep.losses.reference_free import ORPOLoss


def open_orpo(recipe: ORPORecipe, setup: Setup) -> Job:
    """Opens the policy and the pairs."""
    return open_reference_free(recipe, setup, ORPOLoss(recipe.orpo.odds_ratio_weight))
