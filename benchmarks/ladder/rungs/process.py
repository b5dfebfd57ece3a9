"""A decision process of eight moves: does an algorithm find that a move which pays nothing now pays
at the next one?

All arms but one have an entropy bonus, as large beside their advantages in each: without one the
policy settles on the first round trip that pays. Walking at random earns .39 of the optimum, what
pays most at each move .54, and the best walk that is the same in all states .58. A critic has
earned nothing on development seeds, nor has λ below 1.
"""

from benchmarks.ladder.relatives import GSPO, REINFORCE_PP, RLOO
from benchmarks.ladder.rung import Arm, Claim, Rung

PROCESS = (
    "data.task={name: benchmarks.ladder.tasks.choices:Choices, "
    "kind: process, states: 8, actions: 5, length: 8, seed: 1}",
    "sampling.max_tokens=8", "validation_sampling.max_tokens=8", "run.max_steps=200",
    "model.scratch.config.initializer_range=0.2",
)  # fmt: skip


def _grpo(*options: str, entropy: float = 0.1) -> Arm:
    return Arm("choices_grpo.yaml", (*PROCESS, f"grpo.entropy_coef={entropy}", *options))


def _ppo(*options: str, entropy: float = 0.1) -> Arm:
    return Arm("choices_ppo.yaml", (*PROCESS, f"ppo.entropy_coef={entropy}", *options))


RUNG = Rung(
    name="process",
    question=(
        "Eight moves among five places, in eight states; a move pays by the places that it joins."
    ),
    metric="validation/reward",
    optimum=1.0,
    threshold=0.75,
    arms={
        "grpo": _grpo(),
        "no_entropy": _grpo(entropy=0.0),
        "rloo": _grpo(*RLOO, entropy=0.02),
        "reinforce++": _grpo(*REINFORCE_PP),
        "gspo": _grpo(*GSPO),
        "ppo": _ppo(),
        "ppo_lambda_1": _ppo("ppo.gae_lambda=1.0"),
        "ppo_raw": _ppo("ppo.whiten_advantages=false", entropy=0.02),
    },
    claims=(Claim("grpo", "no_entropy", "because it settles on the first round trip that pays"),),
)
