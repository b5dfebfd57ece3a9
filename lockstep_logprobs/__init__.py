"""Log-probabilities over shards of vocabulary and sequences.

The only dependency is torch 2.9 or newer.

`model_utils` has NeMo RL's functions by name; docs/guides/logprobs.md is the guide to the functions
below.
"""

from lockstep_logprobs.collectives import sum_gradient
from lockstep_logprobs.hidden import hidden_logprobs
from lockstep_logprobs.packed import Packing
from lockstep_logprobs.shard import Shard
from lockstep_logprobs.softmax import Scoring
from lockstep_logprobs.support import support_floor
from lockstep_logprobs.topk import vocab_topk
from lockstep_logprobs.vocab import vocab_logprobs

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
