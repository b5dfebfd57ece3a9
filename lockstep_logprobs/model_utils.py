"""The functions of `nemo_rl.distributed.model_utils`: change the import and keep the code.

Names and signatures are NeMo RL's. Different from NeMo RL: two all-reduces forward with any chunk
size (top-k adds one all-gather, top-p alone five all-reduces) and none backward through logits, a
fraction of the memory, and edge cases that work (−∞ logits, targets outside the vocabulary, uneven
shards, no group at all). The same: wrappers shift their targets, results are fp32,
`ChunkedDistributedEntropy` is Σ p log p, context parallelism is zig-zag, and its gathers sum the
gradient over ranks, so a loss that every rank computes alike counts once per rank.
`sampling_params` never applies its temperature: callers have divided the logits already
(docs/adr/0005). `logits_sampling_utils` in this package has the names of NeMo RL's module of that
name.
"""

from lockstep_logprobs.autograd import (
    AllGatherCPTensor,
    ChunkedDistributedEntropy,
    ChunkedDistributedGatherLogprob,
    ChunkedDistributedHiddenStatesToLogprobs,
    ChunkedDistributedLogprob,
    ChunkedDistributedLogprobWithSampling,
    DistributedCrossEntropy,
    DistributedLogprob,
    DistributedLogprobWithSampling,
)
from lockstep_logprobs.columns import (
    _compute_distributed_log_softmax,
    _compute_distributed_log_softmax_with_grad,
    _compute_distributed_softmax,
    distributed_vocab_topk,
    gather_logits_at_global_indices,
    get_distillation_topk_logprobs_from_logits,
    vocab_parallel_argmax,
    vocab_parallel_full_log_softmax,
    vocab_parallel_gather_columns,
    vocab_parallel_log_softmax,
)
from lockstep_logprobs.linear_ce import (
    _gpt_forward_with_linear_ce_fusion,
    patch_gpt_model_forward_for_linear_ce_fusion,
)
from lockstep_logprobs.logits_sampling_utils import (
    TrainingSamplingParams,
    apply_top_k_top_p,
    need_top_k_or_top_p_filtering,
)
from lockstep_logprobs.next_token import (
    dtensor_from_parallel_logits_to_logprobs,
    from_parallel_hidden_states_to_logprobs,
    from_parallel_logits_to_logprobs,
    from_parallel_logits_to_logprobs_packed_sequences,
    get_logprobs_from_vocab_parallel_logits,
    get_next_token_logprobs_from_logits,
)
from lockstep_logprobs.redistribute import all_to_all_sq2vp, all_to_all_vp2sq
from lockstep_logprobs.sequences import (
    _get_tokens_on_this_cp_rank,
    allgather_cp_sharded_tensor,
    cp_load_balanced_to_contiguous,
    cp_shift_next,
    group_all_reduce_sum,
    group_all_reduce_sum_with_grad,
)

__all__ = [
    "AllGatherCPTensor",
    "ChunkedDistributedEntropy",
    "ChunkedDistributedGatherLogprob",
    "ChunkedDistributedHiddenStatesToLogprobs",
    "ChunkedDistributedLogprob",
    "ChunkedDistributedLogprobWithSampling",
    "DistributedCrossEntropy",
    "DistributedLogprob",
    "DistributedLogprobWithSampling",
    "TrainingSamplingParams",
    "_compute_distributed_log_softmax",
    "_compute_distributed_log_softmax_with_grad",
    "_compute_distributed_softmax",
    "_get_tokens_on_this_cp_rank",
    "_gpt_forward_with_linear_ce_fusion",
    "all_to_all_sq2vp",
    "all_to_all_vp2sq",
    "allgather_cp_sharded_tensor",
    "apply_top_k_top_p",
    "cp_load_balanced_to_contiguous",
    "cp_shift_next",
    "distributed_vocab_topk",
    "dtensor_from_parallel_logits_to_logprobs",
    "from_parallel_hidden_states_to_logprobs",
    "from_parallel_logits_to_logprobs",
    "from_parallel_logits_to_logprobs_packed_sequences",
    "gather_logits_at_global_indices",
    "get_distillation_topk_logprobs_from_logits",
    "get_logprobs_from_vocab_parallel_logits",
    "get_next_token_logprobs_from_logits",
    "group_all_reduce_sum",
    "group_all_reduce_sum_with_grad",
    "need_top_k_or_top_p_filtering",
    "patch_gpt_model_forward_for_linear_ce_fusion",
    "vocab_parallel_argmax",
    "vocab_parallel_full_log_softmax",
    "vocab_parallel_gather_columns",
    "vocab_parallel_log_softmax",
]
