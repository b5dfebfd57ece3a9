"""Long credit assignment: 24 moves that are right or wrong by themselves, paid by one number at the end.

Of a walk's reward one move decides a 24th, so to one that hands the whole reward to every token the other moves are
noise: each token's signal is 1/√24 of its noise, and spot checks of some of the moves add to that. A critic that reads
which moves were right predicts the reward so far, and with λ < 1 a token is paid for its own move. What the policy has
to learn, one way or the other at each of 128 places, is in nothing that it has been shown.
"""

from __future__ import annotations

from benchmarks.ladder.rung import Arm, Claim, Rung

PPO, GRPO = "credit_ppo.yaml", "credit_grpo.yaml"

RUNG = Rung(
    name="credit",
    question="24 moves, one reward at the end: does a critic pay for itself?",
    metric="validation/reward",
    arms={
        "ppo": Arm(PPO),
        "grpo": Arm(GRPO),
        "no_warmup": Arm(PPO, ("ppo.critic_warmup_steps=0",)),
        "unshifted": Arm(PPO, module="benchmarks.unshifted"),
        "lambda_1": Arm(PPO, ("ppo.gae_lambda_policy=1.0",)),
        "lambda_95": Arm(PPO, ("ppo.gae_lambda_policy=0.95",)),
        "value_clip": Arm(PPO, ("ppo.value_clip=0.2",)),
        "not_whitened": Arm(PPO, ("ppo.whiten_advantages=false",)),
        "megatron": Arm(PPO, ("learner.backend=megatron",)),
    },
    seeds=5,
    claims=(
        Claim("ppo", "grpo", "because a token is paid for its own move"),
        Claim("ppo", "grpo", "because a token is paid for its own move", of="curve"),
        Claim("ppo", "no_warmup", "because an untrained critic hands out noise"),
        Claim("ppo", "unshifted", "because a value that has seen the move leaves no advantage to it"),
        Claim("ppo", "lambda_1", "because with λ = 1 a token is paid for all later moves too"),
        Claim("ppo", "lambda_95", "because with λ = .95 a token is paid for the next ten moves too"),
        Claim("ppo", "value_clip", "because a clip of .2 holds back a critic whose returns range over 10"),
        Claim("ppo", "not_whitened", "because unscaled advantages change the size of steps"),
    ),
    optimum=1.0,
    threshold=0.75,
)
