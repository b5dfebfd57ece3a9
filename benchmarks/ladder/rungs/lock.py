"""A lock with a trap: does an algorithm keep looking when something already pays?"""

from benchmarks.ladder.rung import Arm, Claim, Rung

LOCK = (
    "data.task={name: choices, kind: lock, states: 8, actions: 8, length: 2, trap: 0.3}",
    "sampling.max_tokens=2", "validation_sampling.max_tokens=2", "run.max_steps=150",
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
        "grpo": _grpo(),
        "entropy": _grpo("grpo.entropy_coef=0.01"),
        "entropy_more": _grpo("grpo.entropy_coef=0.03"),
        "epochs": _grpo("grpo.ppo_epochs=4"),
        "clip_higher": _grpo("grpo.ppo_epochs=4", "grpo.clip_high=0.28"),
        "clip_much_higher": _grpo("grpo.ppo_epochs=4", "grpo.clip_high=1.0"),
    },
)
