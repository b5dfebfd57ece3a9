"""Several turns, with an environment that answers: find a number among 15 in four guesses."""

from benchmarks.ladder.relatives import REINFORCE_PP, RLOO
from benchmarks.ladder.rung import Arm, Claim, Rung
from lockstep.tasks.guess import best_chance

RUNG = Rung(
    name="guess",
    question="Find a number of 1 to 15 in four guesses; the environment says higher or lower.",
    metric="validation/reward",
    arms={
        "grpo": Arm("guess.yaml"),
        "rloo": Arm("guess.yaml", RLOO),
        "no_group": Arm("guess.yaml", REINFORCE_PP),
        "ppo": Arm("guess_ppo.yaml"),
        "ppo_lambda_95": Arm("guess_ppo.yaml", ("ppo.gae_lambda=0.95",)),
        "observations_trained": Arm("guess.yaml", module="benchmarks.ladder.observations"),
    },
    seeds=3,
    claims=(
        Claim("grpo", "observations_trained", "because the environment's words are not the policy's to learn"),
        Claim("ppo", "grpo", "because the critic sees after each answer what the guess before it was worth"),
    ),
    optimum=best_chance(15, 4),
    threshold=0.75,
    last=2,
)
