"""Long credit assignment: 24 answers that are right or wrong by themselves, paid by one number at the end.

Of a quiz's reward one answer decides a 24th, so to one that hands the whole reward to every token the other answers are
noise: each token's signal is 1/√24 of its noise. A critic that reads the coins predicts the reward from the first quiz
on, and with λ < 1 a token is paid for its own answer. Nothing that the policy has been shown tells which answers are
right, so it has to learn each of them by itself.
"""

from __future__ import annotations

from benchmarks.ladder.relatives import RLOO
from benchmarks.ladder.rung import Arm, Claim, Rung

PPO, GRPO = "ppo_quiz", "grpo_quiz"

RUNG = Rung(
    name="credit",
    question="24 questions, one reward at the end: does a critic pay for itself?",
    metric="validation/reward",
    arms={
        "ppo": Arm(PPO),
        "grpo": Arm(GRPO),
        "grpo, rate 3e-3": Arm(GRPO, ("policy.lr=3.0e-3",)),
        "rloo": Arm(GRPO, RLOO),
        "no_warmup": Arm(PPO, ("ppo.critic_warmup_steps=0",)),
        "lambda_1": Arm(PPO, ("ppo.gae_lambda_policy=1.0",)),
    },
    seeds=5,
    claims=(
        Claim("ppo", "grpo", "because a token is paid for its own answer"),
        Claim("ppo", "grpo, rate 3e-3", "for the same reason, at the rate that suits GRPO better"),
        Claim("ppo", "grpo, rate 3e-3", "for the same reason", of="curve"),
        Claim("ppo", "lambda_1", "because with λ = 1 a token is paid for all later answers too"),
    ),
    optimum=1.0,
    threshold=0.75,
)
