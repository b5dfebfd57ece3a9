"""Long credit assignment: 24 moves that are right or wrong by themselves, paid by one number at the
end.

Of a walk's reward one move decides a 24th, so to one that hands the whole reward to every token the
other moves are noise. A critic that reads the notes predicts the reward so far, and with λ < 1 a
token is paid for its own move. A critic without the shift has read the move, and leaves no
advantage to it.

A quiz of 24 questions with unknown answers, against an environment that shows the score, was tried
and dropped: whether PPO or GRPO was ahead hung on the seed, and a reward with noise cost the critic
more than GRPO (LOG.md).
"""

from __future__ import annotations

from benchmarks.ladder.rung import Arm, Claim, Rung

PPO = "walk_ppo.yaml"

RUNG = Rung(
    name="walk",
    question=(
        "24 moves whose worth can be read off, one reward at the end: do the critic and its "
        "shift matter?"
    ),
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
    seeds=5,
    claims=(
        Claim(
            "warmup",
            "unshifted",
            "because a value that has seen the move leaves no advantage to it",
        ),
        Claim("ppo", "grpo", "because a token is paid for its own move", of="curve"),
        Claim(
            "ppo",
            "lambda_1",
            "because with λ = 1 a token is paid for all later moves too",
            of="curve",
        ),
        Claim(
            "ppo",
            "value_clip",
            "because a clip of .2 holds back a critic whose returns range over 10",
            of="curve",
        ),
    ),
    optimum=1.0,
    threshold=0.75,
)
