"""A lock with a trap: does an algorithm keep looking when something already pays?

Clip-higher has no arm: from smaller weights, with a development seed, it ended lower beside eight
epochs (.65 by .28, .15 by 1, .74 without) and as high beside four (.438 and .436); in the rung
`process`, beside four, lower (.57 and .71).
"""

from benchmarks.ladder.rung import Arm, Claim, Rung

LOCK = (
    "data.task={name: benchmarks.ladder.tasks.choices:Choices, "
    "kind: lock, states: 4, actions: 8, length: 2, trap: 0.3}",
    'data.prompt="{question} : {state}"', "model.scratch.config.initializer_range=0.2",
    "sampling.max_tokens=2", "validation_sampling.max_tokens=2", "run.max_steps=150", "grpo.scale_rewards=none",
)  # fmt: skip


def _grpo(*options: str) -> Arm:
    return Arm("choices_grpo.yaml", (*LOCK, *options))


RUNG = Rung(
    name="lock",
    question=(
        "Two actions, of which one pair pays 1 and a trap, which is found eight times as "
        "often, pays .3."
    ),
    metric="validation/reward",
    optimum=1.0,
    threshold=0.9,
    arms={
        "plain": _grpo(),
        "entropy": _grpo("grpo.entropy_coef=0.1"),
        "group_scale_entropy": _grpo("grpo.scale_rewards=group", "grpo.entropy_coef=0.1"),
        "epochs": _grpo("grpo.ppo_epochs=8", "run.max_steps=100"),
        "epochs_no_clip": _grpo("grpo.ppo_epochs=8", "run.max_steps=100", "grpo.clip=1.0e6"),
    },
    claims=(
        Claim("entropy", "plain", "because it keeps looking when the trap already pays"),
        Claim(
            "entropy",
            "group_scale_entropy",
            "because a group's deviation, small near the trap, outgrows the bonus",
        ),
        Claim(
            "epochs",
            "epochs_no_clip",
            "because nothing else keeps eight passes from making the first find sure",
        ),
    ),
)
