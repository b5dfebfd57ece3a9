"""Log-probabilities over shards of vocabulary and sequences; stands alone, see docs/guides/logprobs.md."""

from lockstep.distributed.hidden import hidden_logprobs
from lockstep.distributed.packed import Packing
from lockstep.distributed.shard import Shard
from lockstep.distributed.softmax import Scoring
from lockstep.distributed.support import support_floor
from lockstep.distributed.topk import vocab_topk
from lockstep.distributed.vocab import vocab_logprobs

__all__ = ["Packing", "Scoring", "Shard", "hidden_logprobs", "support_floor", "vocab_logprobs", "vocab_topk"]
