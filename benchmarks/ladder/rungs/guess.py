"""Several turns, with an environment that answers: find a number among 15 in four guesses.

A critic earns nothing here: on a development seed PPO, GRPO and REINFORCE++ ended within .02 of each other.
"""

from benchmarks.ladder.relatives import REINFORCE_PP
from benchmarks.ladder.rung import Arm, Claim, Rung
from benchmarks.ladder.tasks.guess import best_chance

RUNG = Rung(
    name="guess",
    question="Find a number of 1 to 15 in four guesses; the environment says higher or lower.",
    metric="validation/reward",
    arms={
        "grpo": Arm("guess.yaml"),
        "reinforce_pp": Arm("guess.yaml", REINFORCE_PP),
        "ppo": Arm("guess_ppo.yaml"),
        "observations_trained": Arm("guess.yaml", module="benchmarks.ladder.observations"),
    },
    seeds=3,
    claims=(Claim("grpo", "observations_trained", "because the environment's words are not the policy's to learn"),),
    optimum=best_chance(15, 4),
    threshold=0.75,
    last=2,
)
