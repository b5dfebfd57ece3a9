"""Patches Megatron's `GPTModel` to return tokens' log-probabilities without full logits.

For Megatron's own training loops; Lockstep's Megatron learner scores its last hidden states without
this patch. Names and parameters are NeMo RL's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from lockstep_logprobs.next_token import from_parallel_hidden_states_to_logprobs


@dataclass
class _PatchState:
    """State of the patch: positions per chunk, and the original `GPTModel.forward`."""

    chunk_size: int = 1024
    plain: Any = None


_patched = _PatchState()


def patch_gpt_model_forward_for_linear_ce_fusion(*, chunk_size: int) -> None:
    """Adds `return_logprobs_for_linear_ce_fusion` to `GPTModel`.

    A second call only changes the chunk size.

    Args:
        chunk_size: Positions per chunk; bounds memory.
    """
    from megatron.core.models.gpt import GPTModel

    _patched.chunk_size = chunk_size
    _patched.plain = _patched.plain or GPTModel.forward
    GPTModel.forward = _gpt_forward_with_linear_ce_fusion


def _gpt_forward_with_linear_ce_fusion(
    self: Any,
    input_ids: Tensor,
    position_ids: Tensor,
    attention_mask: Tensor,
    decoder_input: Tensor | None = None,
    labels: Tensor | None = None,
    inference_context: Any = None,
    packed_seq_params: Any = None,
    extra_block_kwargs: dict[str, Any] | None = None,
    runtime_gather_output: bool | None = None,
    *,
    inference_params: Any | None = None,
    loss_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    return_logprobs_for_linear_ce_fusion: bool = False,
    is_spec_decode: bool | None = None,
) -> Tensor:
    """Replaces `GPTModel.forward`; on request returns log-probabilities of `labels`.

    Arguments that are not listed are the same as in Megatron.

    Args:
        self: The model.
        input_ids: [B, S], or this rank's share under context parallelism.
        labels: Token ids of full sequences, not shifted [B, S]; required for log-probabilities.
        return_logprobs_for_linear_ce_fusion: Return log-probabilities.
        is_spec_decode: Argument of newer Megatron versions; not supported with log-probabilities.

    Returns:
        log π(labels[:, t+1]), fp32 [B, S−1], on the last pipeline stage, and hidden states on
    earlier stages; without the request, Megatron's own result.

    Raises:
        ValueError: If log-probabilities are requested without labels or with `is_spec_decode`.
    """
    given = {"inference_context": inference_context, "packed_seq_params": packed_seq_params}
    if not return_logprobs_for_linear_ce_fusion:
        rest = {
            "runtime_gather_output": runtime_gather_output,
            "inference_params": inference_params,
        }
        masks: dict[str, Any] = {"loss_mask": loss_mask, "padding_mask": padding_mask}
        if is_spec_decode is not None:  # older versions lack it
            masks["is_spec_decode"] = is_spec_decode
        first = (input_ids, position_ids, attention_mask, decoder_input, labels)
        return _patched.plain(
            self, *first, extra_block_kwargs=extra_block_kwargs, **given, **rest, **masks
        )
    if labels is None:
        raise ValueError(
            "return_logprobs_for_linear_ce_fusion needs labels: the token ids to score"
        )
    if is_spec_decode:
        raise ValueError(
            "is_spec_decode=True is only for generation; return_logprobs_for_linear_ce_fusion "
            "scores labels"
        )
    made = self._preprocess(
        input_ids, position_ids, decoder_input, padding_mask=padding_mask, **given
    )
    states, rotary, cosine, sine, offset, padding = made[:6]
    hidden = self.decoder(
        hidden_states=states,
        attention_mask=attention_mask,
        rotary_pos_emb=rotary,
        rotary_pos_cos=cosine,
        rotary_pos_sin=sine,
        sequence_len_offset=offset,
        padding_mask=padding,
        **given,
        **(extra_block_kwargs or {}),
    )
    if self.post_process:
        return _score_positions(self, hidden, labels)
    return hidden


def _score_positions(model: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    """Scores positions [S/CP, B, H], or this rank's share of these under sequence parallelism."""
    from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region

    tp = model.pg_collection.tp
    cp = model.pg_collection.cp
    if not model.config.sequence_parallel:
        hidden = scatter_to_sequence_parallel_region(hidden, group=tp)
    tied = model.share_embeddings_and_output_weights
    if tied:
        weight = model.shared_embedding_or_output_weight()
    else:
        weight = model.output_layer.weight
    assert weight is not None, "the last stage has a head"
    start = dist.get_rank(tp) * len(weight)
    several = dist.get_world_size(cp) > 1
    return from_parallel_hidden_states_to_logprobs(
        hidden, weight, None, None, labels, start, start + len(weight), tp, False,
        cp if several else None,
        _patched.chunk_size,
    )  # fmt: skip
