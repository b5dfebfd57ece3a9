"""A bandit in eight states, every second of which pays a hundredth: does an algorithm learn where
little is to be had?

The prompt ends with the state, and weights are large: from small ones, or with the state elsewhere,
all algorithms settle on the same action for several states before they tell these apart. All arms
have an entropy bonus: it outweighs what a poor state pays, unless something divides that by its own
deviation.
"""

from benchmarks.ladder.relatives import DR_GRPO, REINFORCE_PP, RLOO
from benchmarks.ladder.rung import Arm, Claim, Rung

BANDIT = (
    "data.task.kind=bandit", 'data.prompt="{question} : {state}"', "model.scratch.config.initializer_range=0.2",
    "sampling.max_tokens=1", "validation_sampling.max_tokens=1", "run.max_steps=80",
    "reward.function=benchmarks.ladder.tasks.choices:poorer_value",
    "validation_reward={type: python, function: 'benchmarks.ladder.tasks.choices:value'}",
)  # fmt: skip
UNSCALED = 0.03
"""The entropy bonus of arms whose advantages are not divided by a deviation, and so are a third as
large.
"""


def _grpo(*options: str, entropy: float = 0.1) -> Arm:
    return Arm("choices_grpo.yaml", (*BANDIT, f"grpo.entropy_coef={entropy}", *options))


def _ppo(*options: str, entropy: float = 0.1) -> Arm:
    return Arm("choices_ppo.yaml", (*BANDIT, f"ppo.entropy_coef={entropy}", *options))


RUNG = Rung(
    name="bandit",
    question=(
        "One action in each of eight states, half of which pay a hundredth; from random weights."
    ),
    metric="validation/reward",
    optimum=1.0,
    threshold=0.75,
    arms={
        "grpo": _grpo(),
        "dr_grpo": _grpo(*DR_GRPO, entropy=UNSCALED),
        "rloo": _grpo(*RLOO, entropy=UNSCALED),
        "batch_scale": _grpo("grpo.scale_rewards=batch"),
        "reinforce++": _grpo(*REINFORCE_PP),
        "no_baseline": _grpo("grpo.baseline=none", "grpo.scale_rewards=none", entropy=UNSCALED),
        "ppo": _ppo(),
        "ppo_raw": _ppo("ppo.whiten_advantages=false", entropy=UNSCALED),
    },
    claims=(
        Claim(
            "grpo",
            "dr_grpo",
            "because a group's deviation makes poor states count as much as rich ones",
        ),
        Claim(
            "grpo",
            "batch_scale",
            "because a deviation of the whole step is that of the rich states",
        ),
    ),
)
