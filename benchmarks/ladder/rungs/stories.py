"""Real text: happy words in stories, where moving away from the first policy costs what it
gains.
"""

from benchmarks.ladder.relatives import RLOO
from benchmarks.ladder.rung import Arm, Claim, Rung
from benchmarks.ladder.stories_objective import measure

RUNG = Rung(
    name="stories",
    question=(
        "Happy words from a story model of 260 K parameters, less .1 per nat of KL of the response."
    ),
    # The curve is of training openings, without KL of the reward alone; the end is the objective of
    # held-out ones.
    metric="train/shaped_reward",
    arms={
        "RLOO, KL in the reward": Arm("stories.yaml", (*RLOO, "grpo.kl.placement=reward")),
        "RLOO, KL in the loss": Arm("stories.yaml", RLOO),
        "GRPO, KL in the reward": Arm("stories.yaml", ("grpo.kl.placement=reward",)),
        "GRPO, KL in the loss": Arm("stories.yaml"),
        "RLOO, no KL": Arm("stories.yaml", (*RLOO, "grpo.kl.coef=0.0")),
    },
    seeds=3,
    claims=(
        Claim(
            "RLOO, KL in the reward",
            "RLOO, no KL",
            "because without KL the policy leaves the stories behind",
        ),
        Claim(
            "RLOO, KL in the loss",
            "GRPO, KL in the loss",
            "because GRPO's KL counts for less: rewards are divided",
        ),
        Claim(
            "GRPO, KL in the reward", "GRPO, KL in the loss", "because there the KL is divided, too"
        ),
    ),
    # of held-out openings: .796 ± .003 from samples of the reference, .800 ± .005 from a trained
    # policy
    optimum=0.797,
    measure=measure,
    needs_assets=True,
)
