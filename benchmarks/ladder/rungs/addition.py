"""Sums of two to eight digits: the algorithms side by side, with head-room.

Sums of seven and eight digits are not demonstrated, so some prompts are hardly ever solved. A step
has eight prompts, so that those which teach nothing are missed: on a development seed dynamic
sampling ended .08 above GRPO, with sixteen prompts .03. All arms have the learning rate 5e-4; with
twice that CISPO learned nothing.
"""

from benchmarks.ladder.relatives import DR_GRPO, REINFORCE_PP
from benchmarks.ladder.rung import Arm, Claim, Rung

RUNG = Rung(
    name="addition",
    question=(
        "Add numbers of two to eight digits, after demonstrations of up to six with a wrong "
        "digit in ten."
    ),
    metric="validation/reward",
    arms={
        "grpo": Arm("addition.yaml"),
        "response_mean": Arm("addition.yaml", ("grpo.loss_mean=responses",)),
        "dr_grpo": Arm("addition.yaml", DR_GRPO),
        "dynamic_sampling": Arm("addition.yaml", ("grpo.dynamic_sampling.max_batches=10",)),
        "reinforce_pp": Arm("addition.yaml", REINFORCE_PP),
        "ppo": Arm("addition_ppo.yaml"),
    },
    seeds=3,
    claims=(
        Claim(
            "dynamic_sampling",
            "grpo",
            "since prompts that are always or never solved teach nothing",
        ),
        Claim(
            "grpo",
            "reinforce_pp",
            "since the baseline of a question tells an easy one from a hard one",
        ),
        Claim(
            "ppo",
            "grpo",
            "since with a critic a step has 64 prompts, where groups of eight leave room for eight",
        ),
        Claim("ppo", "reinforce_pp", "since the critic tells an easy question from a hard one"),
    ),
    threshold=0.5,
    last=2,
)
