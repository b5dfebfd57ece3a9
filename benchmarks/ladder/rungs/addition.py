"""Sums of two to six digits: the algorithms side by side, with head-room."""

from benchmarks.ladder.relatives import CISPO, DR_GRPO, GSPO, REINFORCE_PP
from benchmarks.ladder.rung import Arm, Claim, Rung

RUNG = Rung(
    name="addition",
    question="Add numbers of two to six digits, after demonstrations in which one digit of ten is wrong.",
    metric="validation/reward",
    arms={
        "grpo": Arm("addition.yaml"),
        "grpo, mean of responses": Arm("addition.yaml", ("grpo.loss_mean=responses",)),
        "dr. grpo": Arm("addition.yaml", DR_GRPO),
        "dynamic sampling": Arm("addition.yaml", ("grpo.dynamic_sampling.max_batches=10",)),
        "gspo": Arm("addition.yaml", GSPO),
        "cispo": Arm("addition.yaml", CISPO),
        "reinforce++": Arm("addition.yaml", REINFORCE_PP),
        "ppo": Arm("addition_ppo.yaml"),
    },
    seeds=3,
    claims=(
        Claim("dynamic sampling", "grpo", "since groups without a difference teach nothing", "curve"),
        Claim("grpo", "reinforce++", "since the baseline of a question tells an easy one from a hard one"),
        Claim("ppo", "reinforce++", "since the critic tells an easy question from a hard one"),
    ),
    threshold=0.45,
)
