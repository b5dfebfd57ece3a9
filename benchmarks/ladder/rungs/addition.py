"""Sums of two to six digits: the algorithms side by side, with head-room."""

from benchmarks.ladder.rung import Arm, Claim, Rung

RUNG = Rung(
    name="addition",
    question="Add numbers of two to six digits, after demonstrations in which one digit of ten is wrong.",
    metric="validation/reward",
    arms={
        "grpo": Arm("addition.yaml"),
        "grpo, mean of responses": Arm("addition.yaml", ("grpo.loss_mean=responses",)),
        "dr. grpo": Arm("addition.yaml", ("grpo.scale_rewards=none", "grpo.loss_mean=constant")),
        "dynamic sampling": Arm("addition.yaml", ("grpo.dynamic_sampling.max_batches=10",)),
        "gspo": Arm(
            "addition.yaml",
            (
                "grpo.importance_sampling_level=sequence",
                "grpo.loss_mean=responses",
                "grpo.clip=3.0e-4",
                "grpo.clip_high=4.0e-4",
            ),
        ),
        "cispo": Arm("addition.yaml", ("grpo.loss=cispo", "grpo.clip_high=2.0")),
        "reinforce++": Arm(
            "addition.yaml", ("grpo.baseline=none", "grpo.scale_rewards=none", "grpo.whiten_advantages=true")
        ),
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
