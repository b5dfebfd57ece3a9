"""Luck beside skill: a wheel decides most of an episode's reward, before the first answer and for all to see.

GRPO compares episodes whose luck differs, and more of them only average it out: an answer is worth a tenth of what
luck adds or takes. A critic that reads what the wheel gave predicts the reward from there on, so answers are paid for
themselves. This is the variance that a baseline of the state takes away and a baseline of the prompt cannot.
"""

from __future__ import annotations

from benchmarks.ladder.relatives import REINFORCE_PP, RLOO
from benchmarks.ladder.rung import Arm, Claim, Rung

PPO, GRPO = "ppo_wheel", "grpo_wheel"
FAST = ("run.max_steps=30", "policy.lr=2.0e-3")
COLD = (*FAST, "ppo.critic_warmup_steps=0")

RUNG = Rung(
    name="wheel",
    question="Four answers, and a wheel that adds or takes ten times an answer: does a critic that reads it pay?",
    metric="validation/reward",
    arms={
        "ppo": Arm(PPO, COLD),
        "warmup": Arm(PPO, (*FAST, "ppo.critic_warmup_steps=3")),
        "lambda_95": Arm(PPO, (*COLD, "ppo.gae_lambda=0.95")),
        "grpo": Arm(GRPO, FAST),
        "grpo, rate 1e-3": Arm(GRPO, ("run.max_steps=30",)),
        "grpo, 30 more steps": Arm(GRPO, ("policy.lr=2.0e-3",)),
        "rloo": Arm(GRPO, (*FAST, *RLOO)),
        "reinforce++": Arm(GRPO, (*FAST, *REINFORCE_PP)),
    },
    seeds=5,
    claims=(
        Claim("ppo", "grpo", "because a critic knows the luck before the answers"),
        Claim("ppo", "grpo, rate 1e-3", "for the same reason, at a rate that noise harms less"),
        Claim("ppo", "grpo, 30 more steps", "for the same reason, with half the episodes"),
        Claim("warmup", "grpo", "for the same reason"),
        Claim("ppo", "warmup", "because the policy learns while the critic does", of="curve"),
    ),
    optimum=1.0,
    threshold=0.9,
)
