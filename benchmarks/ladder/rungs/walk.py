"""The value of a token is that of the state before it: walks whose moves tell by themselves what they were worth.

A walker notes after each move whether the ground is dry, and it knows the ground: a critic that has read the move, as
one without the shift has, leaves no advantage to it.
"""

from __future__ import annotations

from benchmarks.ladder.rung import Arm, Claim, Rung

PPO = "walk_ppo.yaml"

RUNG = Rung(
    name="walk",
    question="24 moves whose worth can be read off, one reward at the end: do the critic and its shift matter?",
    metric="validation/reward",
    arms={
        "ppo": Arm(PPO),
        "grpo": Arm("walk_grpo.yaml"),
        "warmup": Arm(PPO, ("ppo.critic_warmup_steps=6",)),
        "unshifted": Arm(PPO, ("ppo.critic_warmup_steps=6",), module="benchmarks.unshifted"),
        "lambda_1": Arm(PPO, ("ppo.gae_lambda_policy=1.0",)),
        "value_clip": Arm(PPO, ("ppo.value_clip=0.2",)),
        "not_whitened": Arm(PPO, ("ppo.whiten_advantages=false",)),
        "megatron": Arm(PPO, ("learner.backend=megatron",)),
    },
    seeds=3,
    claims=(
        Claim("warmup", "unshifted", "because a value that has seen the move leaves no advantage to it"),
        Claim("ppo", "grpo", "because a token is paid for its own move", of="curve"),
        Claim("ppo", "lambda_1", "because with λ = 1 a token is paid for all later moves too", of="curve"),
        Claim("ppo", "value_clip", "because a clip of .2 holds back a critic whose returns range over 10", of="curve"),
    ),
    optimum=1.0,
    threshold=0.75,
)
