"""The value of a token is that of the state before it: walks whose moves tell by themselves what they were worth.

A walker notes after each move whether the ground is dry, and it knows the ground: a critic that has read the move, as
one without the shift has, leaves no advantage to it.
"""

from __future__ import annotations

from benchmarks.ladder.rung import Arm, Claim, Rung

PPO = "walk_ppo.yaml"

RUNG = Rung(
    name="walk",
    question="24 moves, one reward at the end, each move with its worth to be read off: does the shift matter?",
    metric="validation/reward",
    arms={
        "ppo": Arm(PPO),
        "unshifted": Arm(PPO, module="benchmarks.unshifted"),
        "grpo": Arm("walk_grpo.yaml"),
        "megatron": Arm(PPO, ("learner.backend=megatron",)),
    },
    seeds=3,
    claims=(
        Claim("ppo", "unshifted", "because a value that has seen the move leaves no advantage to it"),
        Claim("ppo", "unshifted", "for the same reason", of="curve"),
    ),
    optimum=1.0,
    threshold=0.75,
)
