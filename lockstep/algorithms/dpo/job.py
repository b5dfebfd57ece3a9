"""Setup of DPO (Rafailov et al. 2023): pairs train a policy without a reward model.

The policy that maximizes reward − β·KL(π ‖ π_ref) has r(x, y) = β·log π(y | x)/π_ref(y | x) + β·log
Z(x). In the Bradley-Terry model of preferences Z cancels, and the log-likelihood to maximize is log
σ(β·Δ) (eq. 7).
"""

from __future__ import annotations

from lockstep.algorithms.dpo.options import DPORecipe
from lockstep.algorithms.job import Job
from lockstep.algorithms.learn_pairs import build_preference_loss, open_pair_job
from lockstep.algorithms.setup import Setup


def open_dpo(recipe: DPORecipe, setup: Setup) -> Job:
    """Opens the policy, the reference policy and the pairs."""
    return open_pair_job(
        recipe, setup, build_preference_loss(recipe.dpo, recipe.dpo.ref_policy_kl_penalty)
    )
