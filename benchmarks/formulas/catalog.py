"""The formulas that are compared: name, equation and its float64 form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.formulas import references as paper
from benchmarks.formulas.rollouts import Method

GSPO = partial(paper.policy_loss, mean="responses", low=paper.GSPO_CLIP, high=paper.GSPO_CLIP)


@dataclass(frozen=True)
class Formula:
    """A formula.

    Attributes:
        title: In the table.
        reference: The paper's equation.
    """

    title: str
    reference: Method


FORMULAS: dict[str, Formula] = {
    "gae_returns": Formula("GAE, returns", paper.gae_returns),
    "gae_cut_off": Formula(
        "GAE, returns, the value after a response that was cut off",
        partial(paper.gae_returns, bootstrap=True),
    ),
    "gae_whitened": Formula("GAE, whitened advantages", paper.gae_whitened),
    "grpo": Formula("GRPO advantage", partial(paper.group, deviation="group")),
    "dr_grpo": Formula("Dr. GRPO advantage", paper.group),
    "rloo": Formula("RLOO advantage", partial(paper.group, others=True)),
    "reinforce_pp": Formula("REINFORCE++ advantage, KL in the reward", paper.reinforce_plus_plus),
    "reinforce_pp_baseline": Formula(
        "REINFORCE++ with baseline", partial(paper.reinforce_plus_plus, baseline=True, kl="none")
    ),
    "kl_reward": Formula("KL in the reward", paper.rewards_with_kl),
    "ppo_tokens": Formula("PPO clip, mean over tokens", paper.policy_loss),
    "ppo_responses": Formula(
        "PPO clip, mean over responses", partial(paper.policy_loss, mean="responses")
    ),
    "dr_grpo_mean": Formula(
        "PPO clip, Dr. GRPO's mean", partial(paper.policy_loss, mean="constant")
    ),
    "clip_higher": Formula("clip-higher", partial(paper.policy_loss, high=paper.CLIP_HIGH)),
    "dual_clip": Formula("dual clip", partial(paper.policy_loss, dual=paper.DUAL_CLIP)),
    "gspo": Formula("GSPO", partial(GSPO, ratio="response", per_response=True)),
    "gspo_token": Formula(
        "GSPO-token, an advantage per token", partial(GSPO, ratio="response-token")
    ),
    "cispo": Formula("CISPO", paper.cispo),
    "tis_token": Formula("TIS per token", partial(paper.policy_loss, weigh=paper.truncate)),
    "tis_sequence": Formula(
        "TIS per response", partial(paper.policy_loss, weigh=paper.truncate_response)
    ),
    "icepop": Formula("IcePop", partial(paper.policy_loss, weigh=paper.icepop)),
    "k1": Formula("KL estimator k1", partial(paper.kl_estimate, name="k1")),
    "k2": Formula("KL estimator k2", partial(paper.kl_estimate, name="k2")),
    "k3": Formula("KL estimator k3", partial(paper.kl_estimate, name="k3")),
    "kl_loss": Formula("KL in the loss", paper.kl_gradient),
    "entropy": Formula("entropy", paper.entropy),
    "value_loss": Formula("clipped value loss", paper.value_loss),
    "dpo": Formula("DPO", paper.dpo),
    "ipo": Formula("IPO", partial(paper.dpo, squared=True)),
}
