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

REQUIRED = inspect.Parameter.empty

LOGITS = ("vocab_parallel_logits", REQUIRED)
TARGET = ("target", REQUIRED)
RANGE = (("vocab_start_index", REQUIRED), ("vocab_end_index", REQUIRED))
TP = ("tp_group", REQUIRED)
INFERENCE = ("inference_only", False)
CHUNK = ("chunk_size", REQUIRED)
FILTER = (("top_k", REQUIRED), ("top_p", REQUIRED))
CP = ("cp_group", None)
SEQ_INDEX = ("seq_index", None)
OPTIONS = (("chunk_size", None), ("sampling_params", None))

AUTOGRAD = {
    "DistributedLogprob": (LOGITS, TARGET, *RANGE, ("group", REQUIRED), INFERENCE),
    "DistributedCrossEntropy": (
        ("student_logits", REQUIRED),
        ("target_logits", REQUIRED),
        ("group", REQUIRED),
        INFERENCE,
    ),
    "ChunkedDistributedLogprob": (LOGITS, TARGET, *RANGE, CHUNK, TP, INFERENCE),
    "DistributedLogprobWithSampling": (LOGITS, TARGET, TP, *FILTER, INFERENCE),
    "ChunkedDistributedLogprobWithSampling": (LOGITS, TARGET, TP, *FILTER, CHUNK, INFERENCE),
    "ChunkedDistributedGatherLogprob": (
        LOGITS,
        ("global_indices", REQUIRED),
        *RANGE,
        CHUNK,
        TP,
        INFERENCE,
    ),
    "AllGatherCPTensor": (("tensor", REQUIRED), ("cp_group", REQUIRED), ("seq_dim", 1)),
    "ChunkedDistributedEntropy": (LOGITS, CHUNK, TP, INFERENCE),
    "ChunkedDistributedHiddenStatesToLogprobs": (
        ("tensor_parallel_hidden_states", REQUIRED),
        TARGET,
        ("output_weight_layer", REQUIRED),
        *RANGE,
        CHUNK,
        TP,
        INFERENCE,
    ),
}

FUNCTIONS = {
    "_compute_distributed_log_softmax": (LOGITS, ("group", REQUIRED)),
    "_compute_distributed_softmax": (LOGITS, ("group", REQUIRED)),
    "dtensor_from_parallel_logits_to_logprobs": (
        LOGITS,
        TARGET,
        *RANGE,
        TP,
        INFERENCE,
        SEQ_INDEX,
        *OPTIONS,
    ),
    "from_parallel_logits_to_logprobs": (LOGITS, TARGET, *RANGE, TP, INFERENCE, CP, *OPTIONS),
    "from_parallel_logits_to_logprobs_packed_sequences": (
        LOGITS,
        TARGET,
        ("cu_seqlens_padded", REQUIRED),
        ("unpacked_seqlen", REQUIRED),
        *RANGE,
        ("group", REQUIRED),
        INFERENCE,
        CP,
        *OPTIONS,
        ("target_is_pre_rolled", False),
    ),
    "_get_tokens_on_this_cp_rank": (
        ("input_ids", REQUIRED),
        ("cp_rank", REQUIRED),
        ("cp_size", REQUIRED),
        ("seq_dim", 1),
    ),
    "allgather_cp_sharded_tensor": (("tensor", REQUIRED), ("cp_group", REQUIRED), ("seq_dim", 1)),
    "get_logprobs_from_vocab_parallel_logits": (
        LOGITS,
        ("input_ids", REQUIRED),
        SEQ_INDEX,
        *OPTIONS,
    ),
    "get_next_token_logprobs_from_logits": (
        ("input_ids", REQUIRED),
        ("next_token_logits", REQUIRED),
        SEQ_INDEX,
        ("vocab_parallel_rank", None),
        ("vocab_parallel_group", None),
        ("context_parallel_group", None),
        ("sampling_params", None),
    ),
    "distributed_vocab_topk": (LOGITS, ("k", REQUIRED), TP),
    "gather_logits_at_global_indices": (
        LOGITS,
        ("global_indices", REQUIRED),
        ("tp_group", None),
        CP,
    ),
    "get_distillation_topk_logprobs_from_logits": (
        ("student_logits", REQUIRED),
        ("teacher_topk_logits", REQUIRED),
        ("teacher_topk_indices", REQUIRED),
        ("zero_outside_topk", REQUIRED),
        ("calculate_entropy", REQUIRED),
        ("vocab_parallel_rank", None),
        ("vocab_parallel_group", None),
        ("context_parallel_group", None),
    ),
    "from_parallel_hidden_states_to_logprobs": (
        ("tensor_parallel_hidden_states", REQUIRED),
        ("output_weight_layer", REQUIRED),
        ("output_weight", REQUIRED),
        ("runtime_gather_output", REQUIRED),
        TARGET,
        *RANGE,
        TP,
        INFERENCE,
        CP,
        ("chunk_size", None),
    ),
    "all_to_all_vp2sq": (LOGITS, TP),
    "all_to_all_sq2vp": (("seq_parallel_logits", REQUIRED), TP),
    "patch_gpt_model_forward_for_linear_ce_fusion": (),
    "_gpt_forward_with_linear_ce_fusion": (
        ("self", REQUIRED),
        ("input_ids", REQUIRED),
        ("position_ids", REQUIRED),
        ("attention_mask", REQUIRED),
        ("decoder_input", None),
        ("labels", None),
        ("inference_context", None),
        ("packed_seq_params", None),
        ("extra_block_kwargs", None),
        ("runtime_gather_output", None),
    ),
}

NEWEST = {
    "_compute_distributed_log_softmax_with_grad": (LOGITS, ("group", REQUIRED)),
    "group_all_reduce_sum": (("x", REQUIRED), ("group", REQUIRED)),
    "group_all_reduce_sum_with_grad": (("x", REQUIRED), ("group", REQUIRED)),
    "cp_load_balanced_to_contiguous": (("x", REQUIRED),),
    "cp_shift_next": (("x", REQUIRED), CP),
    "vocab_parallel_log_softmax": (("logits", REQUIRED), ("temperature", REQUIRED)),
    "vocab_parallel_full_log_softmax": (("logits", REQUIRED), ("temperature", REQUIRED)),
    "vocab_parallel_gather_columns": (("logits", REQUIRED), ("column_indices", REQUIRED)),
    "vocab_parallel_argmax": (("logits", REQUIRED),),
}
"""Names that the reference got after its page was written."""

BY_KEYWORD_ONLY = {
    "distributed_vocab_topk": (*RANGE, ("chunk_size", None)),
    "gather_logits_at_global_indices": (*RANGE, ("chunk_size", None)),
    "patch_gpt_model_forward_for_linear_ce_fusion": (CHUNK,),
    "_gpt_forward_with_linear_ce_fusion": (
        ("inference_params", None),
        ("loss_mask", None),
        ("padding_mask", None),
        ("return_logprobs_for_linear_ce_fusion", False),
    ),
    "cp_load_balanced_to_contiguous": (CP, ("seq_dim", 1)),
    "cp_shift_next": (("fill", REQUIRED),),
    "vocab_parallel_log_softmax": (("tp_group", None),),
    "vocab_parallel_full_log_softmax": (("tp_group", None),),
    "vocab_parallel_gather_columns": (("tp_group", None),),
    "vocab_parallel_argmax": (("tp_group", None),),
}

MORE_AT_THE_END = {"get_next_token_logprobs_from_logits": (("chunk_size", None),)}
"""What later versions of the reference added, and the facade may take too: optional, after all that
the page has.
"""


MORE_BY_KEYWORD = {"_gpt_forward_with_linear_ce_fusion": [("is_spec_decode", None)]}
"""Likewise, by keyword only."""


def parameters(name: str) -> dict[str, list[tuple[str, object]]]:
    found = vars(model_utils)[name]
    if inspect.isclass(found):
        assert issubclass(found, torch.autograd.Function)
        ctx, *of = inspect.signature(found.forward).parameters.values()
        assert ctx.name == "ctx"
    else:
        of = list(inspect.signature(found).parameters.values())
    assert {parameter.kind for parameter in of} <= {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }
    return {
        kind: [
            (parameter.name, parameter.default) for parameter in of if parameter.kind.name == kind
        ]
        for kind in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
    }


def test_all_names_are_listed() -> None:
    assert len(AUTOGRAD) + len(FUNCTIONS) == 26
    filters = {"TrainingSamplingParams", "apply_top_k_top_p", "need_top_k_or_top_p_filtering"}
    assert {*AUTOGRAD, *FUNCTIONS, *NEWEST, *filters} == set(model_utils.__all__)


@pytest.mark.parametrize("name", [*AUTOGRAD, *FUNCTIONS, *NEWEST])
def test_parameters_are_those_of_the_reference(name: str) -> None:
    expected = list((AUTOGRAD | FUNCTIONS | NEWEST)[name])
    found = parameters(name)
    extra = found["POSITIONAL_OR_KEYWORD"][len(expected) :]
    assert found["POSITIONAL_OR_KEYWORD"][: len(expected)] == expected
    assert extra in ([], list(MORE_AT_THE_END.get(name, ())))
    assert found["KEYWORD_ONLY"] == [*BY_KEYWORD_ONLY.get(name, ()), *MORE_BY_KEYWORD.get(name, [])]


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd_functions_are_classes(name: str) -> None:
    assert issubclass(vars(model_utils)[name], torch.autograd.Function)


def test_sampling_parameters_have_the_fields_of_the_page() -> None:
    assert [(field.name, field.default) for field in fields(TrainingSamplingParams)] == [
        ("top_k", None),
        ("top_p", 1.0),
        ("temperature", 1.0),
    ]


def test_speculative_decoding_has_no_logprobs_of_labels() -> None:
    forward, ids = (
        vars(model_utils)["_gpt_forward_with_linear_ce_fusion"],
        torch.zeros(1, 2, dtype=torch.int64),
    )
    asked = {"labels": ids, "return_logprobs_for_linear_ce_fusion": True}
    with pytest.raises(ValueError, match="is_spec_decode=True is only for generation"):
        forward(None, ids, ids, ids, is_spec_decode=True, **asked)
