"""The facade's names, and of each its parameters in order with their kinds and defaults, written
down once more.
"""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import torch

from lockstep_logprobs import model_utils
from lockstep_logprobs.logits_sampling_utils import TrainingSamplingParams

AUTOGRAD = {
    "DistributedLogprob": (
        "vocab_parallel_logits, target, vocab_start_index, vocab_end_index, group, "
        "inference_only=False"
    ),
    "DistributedCrossEntropy": "student_logits, target_logits, group, inference_only=False",
    "ChunkedDistributedLogprob": (
        "vocab_parallel_logits, target, vocab_start_index, vocab_end_index, chunk_size, tp_group, "
        "inference_only=False"
    ),
    "DistributedLogprobWithSampling": (
        "vocab_parallel_logits, target, tp_group, top_k, top_p, inference_only=False"
    ),
    "ChunkedDistributedLogprobWithSampling": (
        "vocab_parallel_logits, target, tp_group, top_k, top_p, chunk_size, inference_only=False"
    ),
    "ChunkedDistributedGatherLogprob": (
        "vocab_parallel_logits, global_indices, vocab_start_index, vocab_end_index, chunk_size, "
        "tp_group, inference_only=False"
    ),
    "AllGatherCPTensor": "tensor, cp_group, seq_dim=1",
    "ChunkedDistributedEntropy": (
        "vocab_parallel_logits, chunk_size, tp_group, inference_only=False"
    ),
    "ChunkedDistributedHiddenStatesToLogprobs": (
        "tensor_parallel_hidden_states, target, output_weight_layer, vocab_start_index, "
        "vocab_end_index, chunk_size, tp_group, inference_only=False"
    ),
}

FUNCTIONS = {
    "_compute_distributed_log_softmax": "vocab_parallel_logits, group",
    "_compute_distributed_softmax": "vocab_parallel_logits, group",
    "dtensor_from_parallel_logits_to_logprobs": (
        "vocab_parallel_logits, target, vocab_start_index, vocab_end_index, tp_group, "
        "inference_only=False, seq_index=None, chunk_size=None, sampling_params=None"
    ),
    "from_parallel_logits_to_logprobs": (
        "vocab_parallel_logits, target, vocab_start_index, vocab_end_index, tp_group, "
        "inference_only=False, cp_group=None, chunk_size=None, sampling_params=None"
    ),
    "from_parallel_logits_to_logprobs_packed_sequences": (
        "vocab_parallel_logits, target, cu_seqlens_padded, unpacked_seqlen, vocab_start_index, "
        "vocab_end_index, group, inference_only=False, cp_group=None, chunk_size=None, "
        "sampling_params=None, target_is_pre_rolled=False"
    ),
    "_get_tokens_on_this_cp_rank": "input_ids, cp_rank, cp_size, seq_dim=1",
    "allgather_cp_sharded_tensor": "tensor, cp_group, seq_dim=1",
    "get_logprobs_from_vocab_parallel_logits": (
        "vocab_parallel_logits, input_ids, seq_index=None, chunk_size=None, sampling_params=None"
    ),
    "get_next_token_logprobs_from_logits": (
        "input_ids, next_token_logits, seq_index=None, vocab_parallel_rank=None, "
        "vocab_parallel_group=None, context_parallel_group=None, sampling_params=None, "
        "chunk_size=None"
    ),
    "distributed_vocab_topk": (
        "vocab_parallel_logits, k, tp_group, *, vocab_start_index, vocab_end_index, chunk_size=None"
    ),
    "gather_logits_at_global_indices": (
        "vocab_parallel_logits, global_indices, tp_group=None, cp_group=None, *, "
        "vocab_start_index, vocab_end_index, chunk_size=None"
    ),
    "get_distillation_topk_logprobs_from_logits": (
        "student_logits, teacher_topk_logits, teacher_topk_indices, zero_outside_topk, "
        "calculate_entropy, vocab_parallel_rank=None, vocab_parallel_group=None, "
        "context_parallel_group=None"
    ),
    "from_parallel_hidden_states_to_logprobs": (
        "tensor_parallel_hidden_states, output_weight_layer, output_weight, "
        "runtime_gather_output, target, vocab_start_index, vocab_end_index, tp_group, "
        "inference_only=False, cp_group=None, chunk_size=None"
    ),
    "all_to_all_vp2sq": "vocab_parallel_logits, tp_group",
    "all_to_all_sq2vp": "seq_parallel_logits, tp_group",
    "patch_gpt_model_forward_for_linear_ce_fusion": "*, chunk_size",
    "_gpt_forward_with_linear_ce_fusion": (
        "self, input_ids, position_ids, attention_mask, decoder_input=None, labels=None, "
        "inference_context=None, packed_seq_params=None, extra_block_kwargs=None, "
        "runtime_gather_output=None, *, inference_params=None, loss_mask=None, padding_mask=None, "
        "return_logprobs_for_linear_ce_fusion=False, is_spec_decode=None"
    ),
}
"""With what later versions of the reference added at the end, or by keyword: optional."""

NEWEST = {
    "_compute_distributed_log_softmax_with_grad": "vocab_parallel_logits, group",
    "group_all_reduce_sum": "x, group",
    "group_all_reduce_sum_with_grad": "x, group",
    "cp_load_balanced_to_contiguous": "x, *, cp_group=None, seq_dim=1",
    "cp_shift_next": "x, cp_group=None, *, fill",
    "vocab_parallel_log_softmax": "logits, temperature, *, tp_group=None",
    "vocab_parallel_full_log_softmax": "logits, temperature, *, tp_group=None",
    "vocab_parallel_gather_columns": "logits, column_indices, *, tp_group=None",
    "vocab_parallel_argmax": "logits, *, tp_group=None",
}
"""Names that the reference got after its page was written."""


def test_model_utils_exports_exactly_the_reference_names() -> None:
    filters = {"TrainingSamplingParams", "apply_top_k_top_p", "need_top_k_or_top_p_filtering"}
    assert {*AUTOGRAD, *FUNCTIONS, *NEWEST, *filters} == set(model_utils.__all__)


@pytest.mark.parametrize("name", [*AUTOGRAD, *FUNCTIONS, *NEWEST])
def test_model_utils_parameters_match_the_reference(name: str) -> None:
    found = vars(model_utils)[name]
    expected = (AUTOGRAD | FUNCTIONS | NEWEST)[name]
    if name in AUTOGRAD:
        assert issubclass(found, torch.autograd.Function)
        found, expected = found.forward, f"ctx, {expected}"
    named = inspect.signature(found).parameters.values()
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in named]
    assert str(inspect.Signature(bare)) == f"({expected})"


def test_training_sampling_params_fields_and_defaults_match_the_reference() -> None:
    assert [(field.name, field.default) for field in fields(TrainingSamplingParams)] == [
        ("top_k", None),
        ("top_p", 1.0),
        ("temperature", 1.0),
    ]


def test_label_logprobs_are_refused_with_speculative_decoding() -> None:
    forward, ids = (
        vars(model_utils)["_gpt_forward_with_linear_ce_fusion"],
        torch.zeros(1, 2, dtype=torch.int64),
    )
    asked = {"labels": ids, "return_logprobs_for_linear_ce_fusion": True}
    with pytest.raises(ValueError, match="is_spec_decode=True is only for generation"):
        forward(None, ids, ids, ids, is_spec_decode=True, **asked)
