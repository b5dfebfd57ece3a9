"""What learners and samplers share over ranks; re-exports `lockstep_logprobs`, which stands alone."""

from lockstep_logprobs import (
    Packing,
    Scoring,
    Shard,
    hidden_logprobs,
    sum_gradient,
    support_floor,
    vocab_logprobs,
    vocab_topk,
)

__all__ = [
    "Packing",
    "Scoring",
    "Shard",
    "hidden_logprobs",
    "sum_gradient",
    "support_floor",
    "vocab_logprobs",
    "vocab_topk",
]
