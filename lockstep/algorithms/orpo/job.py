"""Setup of ORPO."""

from __future__ import annotations

from lockstep.algorithms.job import Job
from lockstep.algorithms.learn_pairs import open_pair_job
from lockstep.algorithms.orpo.options import ORPORecipe
from lockstep.algorithms.setup import Setup
from lockstep.losses.preference import ORPOLoss


def open_orpo(recipe: ORPORecipe, setup: Setup) -> Job:
    """Opens the policy and the pairs."""
    return open_pair_job(recipe, setup, ORPOLoss(recipe.orpo.odds_ratio_weight))
