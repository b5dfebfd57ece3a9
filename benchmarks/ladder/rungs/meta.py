"""Meta-Rewarding in two minutes: a good meta-judge makes a better judge, and a poor one does no
harm.
"""

from benchmarks.ladder.rung import Arm, Claim, Rung

PLAIN = ("self_rewarding.use_meta_judge=false", "meta_judge=null")
POOR = ("model.from_recipe=benchmarks/ladder/rungs/meta_poor_sft.yaml",)
"""A warm start that has seen few comparisons."""

RUNG = Rung(
    name="meta",
    question=(
        "A model answers, judges, and judges its judgments; is it a better judge of known "
        "answers afterwards?"
    ),
    metric="validation/judge_exact",
    arms={
        "meta": Arm("meta.yaml"),
        "plain": Arm("meta.yaml", PLAIN),
        "poor": Arm("meta.yaml", POOR),
        "poor, plain": Arm("meta.yaml", (*POOR, *PLAIN)),
        "poor, ungated": Arm("meta.yaml", POOR, module="benchmarks.ladder.ungated"),
    },
    optimum=1.0,
    seeds=3,
    claims=(
        Claim("meta", "plain", "because better judgments are preferred"),
        Claim("poor", "poor, ungated", "because pairs of a meta-judge without skill are left out"),
        Claim("poor, plain", "poor, ungated", "because such pairs make the judge worse"),
    ),
)
