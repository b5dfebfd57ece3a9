"""A lock with a trap: does an algorithm keep looking when something already pays?"""

from benchmarks.ladder.rung import Arm, Claim, Rung

LOCK = (
    "data.task={name: choices, kind: lock, states: 4, actions: 8, length: 2, trap: 0.3}",
    "sampling.max_tokens=2", "validation_sampling.max_tokens=2", "run.max_steps=150", "grpo.scale_rewards=none",
)  # fmt: skip


def _grpo(*options: str) -> Arm:
    return Arm("choices_grpo.yaml", (*LOCK, *options))


RUNG = Rung(
    name="lock",
    question="Two actions, of which one pair pays 1 and a trap, which is found eight times as often, pays .3.",
    metric="validation/reward",
    optimum=1.0,
    threshold=0.9,
    arms={
        "plain": _grpo(),
        "entropy": _grpo("grpo.entropy_coef=0.1"),
        "group_scale_entropy": _grpo("grpo.scale_rewards=group", "grpo.entropy_coef=0.1"),
        "epochs": _grpo("grpo.ppo_epochs=4"),
        "clip_higher": _grpo("grpo.ppo_epochs=4", "grpo.clip_high=0.28"),
    },
    claims=(
        Claim("entropy", "plain", "because it keeps looking when the trap already pays"),
        Claim("entropy", "group_scale_entropy", "because a group's deviation, small near the trap, outgrows the bonus"),
        Claim("clip_higher", "epochs", "because a rare answer may gain more in a step"),
    ),
)
