"""A bandit in eight states, every second of which pays a hundredth: does an algorithm learn where little is to be had?

The prompt ends with the state, and weights are large: from small ones, or with the state elsewhere, all algorithms
settle on the same action for several states before they tell these apart.
"""

from benchmarks.ladder.relatives import DR_GRPO, REINFORCE_PP, RLOO
from benchmarks.ladder.rung import Arm, Claim, Rung

BANDIT = (
    "data.task.kind=bandit", 'data.prompt="{question} : {state}"', "model.scratch.config.initializer_range=0.2",
    "sampling.max_tokens=1", "validation_sampling.max_tokens=1", "run.max_steps=80",
    "reward.function=lockstep.tasks.choices:poorer_value",
    "validation_reward={type: python, function: 'lockstep.tasks.choices:value'}",
)  # fmt: skip


def _grpo(*options: str) -> Arm:
    return Arm("choices_grpo.yaml", (*BANDIT, *options))


RUNG = Rung(
    name="bandit",
    question="One action in each of eight states, half of which pay a hundredth; from random weights.",
    metric="validation/reward",
    optimum=1.0,
    threshold=0.9,
    arms={
        "grpo": _grpo(),
        "dr_grpo": _grpo(*DR_GRPO),
        "rloo": _grpo(*RLOO),
        "batch_scale": _grpo("grpo.scale_rewards=batch"),
        "reinforce++": _grpo(*REINFORCE_PP),
        "no_baseline": _grpo("grpo.baseline=none", "grpo.scale_rewards=none"),
        "entropy": _grpo("grpo.entropy_coef=0.01"),
        "ppo": Arm("choices_ppo.yaml", BANDIT),
        "ppo_raw": Arm("choices_ppo.yaml", (*BANDIT, "ppo.whiten_advantages=false")),
    },
    claims=(
        Claim("grpo", "dr_grpo", "because a group's deviation makes poor states count as much as rich ones"),
        Claim("rloo", "no_baseline", "because a baseline tells the better action from the rich state"),
    ),
)
