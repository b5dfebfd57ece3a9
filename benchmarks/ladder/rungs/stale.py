"""A sampler whose weights are old: sums, sampled one step ahead, with sixteen updates from each
step's responses.
"""

from benchmarks.ladder.rung import Arm, Claim, Rung

_AHEAD = ("grpo.one_step_ahead=true",)
_TOKEN_TIS = (*_AHEAD, "grpo.correction.kind=token_tis")
_ICEPOP = (
    *_AHEAD,
    "grpo.correction.kind=icepop",
    "grpo.correction.low=0.5",
    "grpo.correction.high=5.0",
)

RUNG = Rung(
    name="stale",
    question=(
        "Sums of two to six digits, sixteen updates from each step's responses: in order, "
        "and one step ahead."
    ),
    metric="validation/reward",
    arms={
        "in_order": Arm("stale.yaml"),
        "no_clip": Arm("stale.yaml", ("grpo.clip=1.0e6",)),
        "ahead_token_tis": Arm("stale.yaml", _TOKEN_TIS),
        "ahead_sequence_tis": Arm("stale.yaml", (*_AHEAD, "grpo.correction.kind=sequence_tis")),
        "ahead_icepop": Arm("stale.yaml", _ICEPOP),
        "ahead_uncorrected": Arm("stale.yaml", _TOKEN_TIS, module="benchmarks.ladder.uncorrected"),
    },
    seeds=3,
    claims=(
        Claim(
            "in_order",
            "no_clip",
            "since nothing else holds sixteen updates near the sampled responses",
        ),
        Claim(
            "ahead_token_tis",
            "ahead_uncorrected",
            "since stale responses are those of another policy",
        ),
        Claim(
            "ahead_sequence_tis",
            "ahead_uncorrected",
            "since stale responses are those of another policy",
        ),
        Claim(
            "ahead_icepop", "ahead_uncorrected", "since stale responses are those of another policy"
        ),
    ),
    threshold=0.45,
    last=2,
)
