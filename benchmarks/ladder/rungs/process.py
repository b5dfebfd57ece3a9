"""A decision process of six actions: does an algorithm find which early action pays later?"""

from benchmarks.ladder.relatives import CISPO, GSPO, REINFORCE_PP, RLOO
from benchmarks.ladder.rung import Arm, Rung

PROCESS = (
    "data.task={name: choices, kind: process, states: 5, actions: 4, length: 6}",
    "sampling.max_tokens=6", "validation_sampling.max_tokens=6", "run.max_steps=100",
)  # fmt: skip


def _grpo(*options: str) -> Arm:
    return Arm("choices_grpo.yaml", (*PROCESS, *options))


def _ppo(*options: str) -> Arm:
    return Arm("choices_ppo.yaml", (*PROCESS, *options))


RUNG = Rung(
    name="process",
    question="Six actions, each of which pays and leads to a next state, by hidden tables; from random weights.",
    metric="validation/reward",
    optimum=1.0,
    threshold=0.9,
    arms={
        "grpo": _grpo(),
        "rloo": _grpo(*RLOO),
        "reinforce++": _grpo(*REINFORCE_PP),
        "gspo": _grpo(*GSPO),
        "cispo": _grpo(*CISPO),
        "ppo": _ppo(),
        "ppo_lambda_1": _ppo("ppo.gae_lambda=1.0"),
        "ppo_raw": _ppo("ppo.whiten_advantages=false"),
        "ppo_discount": _ppo("ppo.gamma=0.9"),
    },
)
