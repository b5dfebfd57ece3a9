"""log π of the next token, from sharded logits or hidden states: wrappers that shift targets.

These wrappers of `model_utils` take token ids that are not shifted; position t of the result scores
token t+1. Groups of None mean one process, and `chunk_size` bounds memory without changing a value.
`sampling_params` applies top-k and top-p and never a temperature: callers have divided the logits
already (docs/adr/0005).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from lockstep_logprobs import context
from lockstep_logprobs.autograd import (
    ChunkedDistributedHiddenStatesToLogprobs,
    block_rows,
    own_columns,
)
from lockstep_logprobs.checks import check_ids
from lockstep_logprobs.collectives import all_gather, group_rank, group_size
from lockstep_logprobs.logits_sampling_utils import SamplingFilters, need_top_k_or_top_p_filtering
from lockstep_logprobs.mesh import mesh_group, vocab_range
from lockstep_logprobs.packed import Packing
from lockstep_logprobs.shard import Shard, even_shard
from lockstep_logprobs.softmax import Scoring
from lockstep_logprobs.support import support_floor
from lockstep_logprobs.vocab import vocab_logprobs

P = ParamSpec("P")
_PLACE = 2
"""Position of `output_weight` in the arguments of `from_parallel_hidden_states_to_logprobs`."""


def from_parallel_logits_to_logprobs(
    vocab_parallel_logits: Tensor,
    target: Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    tp_group: dist.ProcessGroup | None,
    inference_only: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    chunk_size: int | None = None,
    sampling_params: SamplingFilters | None = None,
) -> Tensor:
    """log π(target[:, t+1]) from the logits at t.

    Args:
        vocab_parallel_logits: This rank's columns and zig-zag share of the positions [B, S/CP, v].
        target: Token ids of the full sequences, not shifted [B, S].
        vocab_start_index: This rank's first token id.
        vocab_end_index: End of this rank's token ids, exclusive.
        tp_group: Ranks that hold the vocabulary.
        inference_only: Save nothing for backward.
        cp_group: Ranks that hold the sequences.
        chunk_size: Bound on memory, in positions.
        sampling_params: Filters for scoring; their temperature is ignored.

    Returns:
        fp32 [B, S−1], the same on all ranks; −∞ for a token that the filters exclude.
    """
    check_ids("target", target, vocab_parallel_logits, dims=2)
    following = context.take_padded(target.roll(-1, 1), vocab_parallel_logits.shape[1], cp_group)
    vocab = vocab_start_index, vocab_end_index
    logprob = _token_logprobs(
        vocab_parallel_logits,
        following,
        vocab,
        tp_group,
        inference_only,
        chunk_size,
        sampling_params,
    )
    return context.gather(logprob, cp_group)[:, : max(target.shape[1] - 1, 0)]


def from_parallel_logits_to_logprobs_packed_sequences(
    vocab_parallel_logits: Tensor,
    target: Tensor,
    cu_seqlens_padded: Tensor,
    unpacked_seqlen: int,
    vocab_start_index: int,
    vocab_end_index: int,
    group: dist.ProcessGroup | None,
    inference_only: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    chunk_size: int | None = None,
    sampling_params: SamplingFilters | None = None,
    target_is_pre_rolled: bool = False,
) -> Tensor:
    """`from_parallel_logits_to_logprobs` for packed sequences, with a single exchange.

    Args:
        vocab_parallel_logits: [1, T/CP, v], each sequence cut zig-zag separately.
        target: Token ids [1, T]; if pre-rolled, this rank's share of the next tokens [1, T/CP].
        cu_seqlens_padded: Starts of sequences, and the end of the last, counted over all
            context-parallel ranks, each length a multiple of 2·CP, integers [B+1] on the device of
            the logits.
        unpacked_seqlen: U, the width of the result plus one.
        vocab_start_index: This rank's first token id.
        vocab_end_index: End of this rank's token ids, exclusive.
        group: Ranks that hold the vocabulary.
        inference_only: Save nothing for backward.
        cp_group: Ranks that hold the sequences.
        chunk_size: Bound on memory, in positions.
        sampling_params: Filters for scoring; their temperature is ignored.
        target_is_pre_rolled: See `target`.

    Returns:
        fp32 [B, U−1], the same on all ranks; 0 past the end of a sequence.
    """
    if vocab_parallel_logits.dim() != 3 or len(vocab_parallel_logits) != 1:
        raise ValueError(
            f"packed logits must be one row [1, T/CP, v], not {list(vocab_parallel_logits.shape)}"
        )
    size = group_size(cp_group)
    packing = Packing(cu_seqlens_padded, vocab_parallel_logits.shape[1] * size, size)
    check_ids("target", target, vocab_parallel_logits, dims=2)
    if target_is_pre_rolled:
        expected = vocab_parallel_logits.shape[1]
    else:
        expected = packing.tokens
    if target.shape[1] != expected:
        raise ValueError(f"target has {target.shape[1]} tokens, but these logits need {expected}")
    following = target[0]
    if not target_is_pre_rolled:
        following = following[packing.following()][packing.positions(group_rank(cp_group))]
    vocab = vocab_start_index, vocab_end_index
    logprob = _token_logprobs(
        vocab_parallel_logits,
        following[None],
        vocab,
        group,
        inference_only,
        chunk_size,
        sampling_params,
    )
    # cells without a token read this 0
    everywhere = F.pad(all_gather(logprob[0], cp_group).flatten(), (0, 1))
    index = F.pad(packing.gather_index(), (0, 1), value=packing.tokens)
    cells = index[packing.rows(max(unpacked_seqlen - 1, 0))]
    return everywhere.index_select(0, cells.flatten()).view(cells.shape)


def dtensor_from_parallel_logits_to_logprobs(
    vocab_parallel_logits: Tensor,
    target: DTensor | Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    tp_group: dist.ProcessGroup | None,
    inference_only: bool = False,
    seq_index: Tensor | None = None,
    chunk_size: int | None = None,
    sampling_params: SamplingFilters | None = None,
) -> Tensor:
    """log π(target[:, t+1]) from local logits; the target's mesh dimension "cp" shards sequences.

    Unlike in the other wrappers, each rank keeps its own gradient: a loss that every rank computes
    alike counts once.

    Args:
        vocab_parallel_logits: This rank's columns and share of the positions [B, S/CP, v].
        target: Token ids [B, S]; over context-parallel ranks a DTensor, in the order of the
            concatenated shares.
        vocab_start_index: This rank's first token id.
        vocab_end_index: End of this rank's token ids, exclusive.
        tp_group: Ranks that hold the vocabulary.
        inference_only: Save nothing for backward.
        seq_index: Position of each token in that order [S]; required over context-parallel ranks.
        chunk_size: Bound on memory, in positions.
        sampling_params: Filters for scoring; their temperature is ignored.

    Returns:
        fp32 [B, S−1] in the order of positions, the same on all ranks.
    """
    cp_group = mesh_group(target, "cp") if isinstance(target, DTensor) else None
    whole = target.full_tensor() if isinstance(target, DTensor) else target
    check_ids("target", whole, vocab_parallel_logits, dims=2)
    order = torch.arange(whole.shape[1], device=whole.device)
    if group_size(cp_group) > 1:
        assert seq_index is not None, (
            "context-parallel targets need seq_index, the position of each of their tokens"
        )
        if isinstance(seq_index, DTensor):
            order = seq_index.full_tensor()
        else:
            order = seq_index
    position = order.flatten().argsort()
    following = (
        whole[:, position]
        .roll(-1, 1)[:, order.flatten()]
        .chunk(group_size(cp_group), 1)[group_rank(cp_group)]
    )
    vocab = vocab_start_index, vocab_end_index
    logprob = _token_logprobs(
        vocab_parallel_logits,
        following,
        vocab,
        tp_group,
        inference_only,
        chunk_size,
        sampling_params,
    )
    everywhere = torch.cat(all_gather(logprob, cp_group, gradient="local").unbind(), 1)
    return everywhere.index_select(1, position)[:, :-1]


def get_logprobs_from_vocab_parallel_logits(
    vocab_parallel_logits: DTensor,
    input_ids: Tensor | DTensor,
    seq_index: Tensor | None = None,
    chunk_size: int | None = None,
    sampling_params: SamplingFilters | None = None,
) -> Tensor:
    """`dtensor_from_parallel_logits_to_logprobs` for logits [B, S, V] on a mesh with "tp"."""
    names = vocab_parallel_logits.device_mesh.mesh_dim_names or ()
    assert seq_index is None or "cp" in names, (
        f"seq_index needs a mesh dimension 'cp', but the mesh has {names}"
    )
    start, end = vocab_range(vocab_parallel_logits)
    return dtensor_from_parallel_logits_to_logprobs(
        vocab_parallel_logits.to_local(),
        input_ids,
        start,
        end,
        vocab_parallel_logits.device_mesh.get_group("tp"),
        inference_only=not torch.is_grad_enabled(),
        seq_index=seq_index,
        chunk_size=chunk_size,
        sampling_params=sampling_params,
    )


def get_next_token_logprobs_from_logits(
    input_ids: Tensor,
    next_token_logits: Tensor,
    seq_index: Tensor | None = None,
    vocab_parallel_rank: int | None = None,
    vocab_parallel_group: dist.ProcessGroup | None = None,
    context_parallel_group: dist.ProcessGroup | None = None,
    sampling_params: SamplingFilters | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """log π(input_ids[:, t+1]) from the logits at t, fp32 [B, S−1].

    Logits may be sharded by groups, by a mesh, or not at all.
    """
    if isinstance(next_token_logits, DTensor):
        return get_logprobs_from_vocab_parallel_logits(
            next_token_logits,
            input_ids,
            seq_index=seq_index,
            chunk_size=chunk_size,
            sampling_params=sampling_params,
        )
    shard = even_shard(next_token_logits.shape[-1], vocab_parallel_group, vocab_parallel_rank)
    return from_parallel_logits_to_logprobs(
        next_token_logits,
        input_ids,
        shard.start,
        shard.start + next_token_logits.shape[-1],
        vocab_parallel_group,
        cp_group=context_parallel_group,
        chunk_size=chunk_size,
        sampling_params=sampling_params,
    )


def _accept_both_calls(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Also accepts calls without `output_weight`, which NeMo RL's newest version dropped."""

    plain: Callable[..., Tensor] = function

    @functools.wraps(function)
    def call_either(*args: Any, **keywords: Any) -> Tensor:
        if "output_weight" in keywords or _has_output_weight(args, keywords):
            return plain(*args, **keywords)
        if len(args) <= _PLACE:
            return plain(*args, **keywords, output_weight=None)
        return plain(*args[:_PLACE], None, *args[_PLACE:], **keywords)

    return call_either


def _has_output_weight(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """True if positional arguments include `output_weight` at its position."""
    if len(args) <= _PLACE or isinstance(args[_PLACE], bool):
        return False
    if isinstance(args[_PLACE], Tensor):
        return True
    if len(args) == _PLACE + 1:
        return "runtime_gather_output" in keywords
    return not isinstance(args[_PLACE + 1], Tensor)  # which the targets are


@_accept_both_calls
def from_parallel_hidden_states_to_logprobs(
    tensor_parallel_hidden_states: Tensor,
    output_weight_layer: Tensor,
    output_weight: Tensor | None,
    runtime_gather_output: bool | None,
    target: Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    tp_group: dist.ProcessGroup | None,
    inference_only: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """log π(target[:, t+1]) from the hidden state at t, without full logits.

    Args:
        tensor_parallel_hidden_states: Sequence-first hidden states, sharded over the group
            [S/CP/TP, B, H].
        output_weight_layer: This rank's rows of the head [v, H].
        output_weight: Replaces the layer's weight if given, for example a tied embedding [v, H].
            Calls may omit it, also by position.
        runtime_gather_output: Unused: there are no logits to gather.
        target: Token ids, not shifted [B, S].
        vocab_start_index: This rank's first token id.
        vocab_end_index: End of this rank's token ids, exclusive.
        tp_group: Ranks that hold the vocabulary.
        inference_only: Save nothing for backward.
        cp_group: Ranks that hold the sequences.
        chunk_size: Bound on memory, in positions.

    Returns:
        fp32 [B, S−1].
    """
    weight = output_weight_layer if output_weight is None else output_weight
    if tensor_parallel_hidden_states.dim() != 3 or tensor_parallel_hidden_states.shape[1] != len(
        target
    ):
        raise ValueError(
            f"hidden states must be [positions, sequences, H] with the targets' {len(target)} "
            f"sequences, not {list(tensor_parallel_hidden_states.shape)}"
        )
    positions = tensor_parallel_hidden_states.shape[0] * group_size(tp_group)
    logprob = ChunkedDistributedHiddenStatesToLogprobs.apply(
        tensor_parallel_hidden_states,
        context.take_padded(target.roll(-1, 1), positions, cp_group),
        weight,
        vocab_start_index,
        vocab_end_index,
        chunk_size,
        tp_group,
        inference_only,
    )
    return context.gather(logprob, cp_group)[:, : max(target.shape[1] - 1, 0)]


def _token_logprobs(
    logits: Tensor,
    target: Tensor,
    vocab: tuple[int, int],
    group: dist.ProcessGroup | None,
    inference_only: bool,
    chunk_size: int | None,
    sampling_params: SamplingFilters | None,
) -> Tensor:
    """log p of already shifted targets, fp32, in their shape; with top-k and top-p if requested."""
    rows = own_columns(logits, *vocab)
    shard = Shard(vocab[0], group)
    most = block_rows(logits.shape[:-2].numel(), chunk_size)
    floor = None
    if sampling_params is not None and need_top_k_or_top_p_filtering(sampling_params):
        top_k = sampling_params.top_k
        top_p = sampling_params.top_p
        floor = support_floor(rows, shard, top_k=top_k, top_p=top_p, max_rows=most)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not inference_only):
        logprob, _ = vocab_logprobs(
            rows, target.reshape(-1, 1), Scoring(shard=shard, max_rows=most), floor
        )
    return logprob.view(target.shape)
