"""The functions of `nemo_rl.distributed.model_utils`, by name and signature: change the import and keep the code.

What differs is for the better: two all-reduces forward whatever the chunk size (top-k adds one gather, top-p alone five
sums and maxima) and none backward through logits, a fraction of the memory, and edges that hold (−∞ logits, targets
outside the vocabulary, uneven shards, no group at all). What is as there: wrappers shift their targets, results are
fp32, `ChunkedDistributedEntropy` is Σ p log p, context parallelism is zig-zag, and its gathers sum the gradient over
ranks: a loss which every rank computes alike counts once for each.
`sampling_params` never applies its temperature: callers have divided the logits already (docs/adr/0006).

Everywhere a group of None means one process, and `chunk_size` bounds memory without changing a value.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from lockstep.distributed import context
from lockstep.distributed.autograd import (
    AllGatherCPTensor,
    ChunkedDistributedEntropy,
    ChunkedDistributedGatherLogprob,
    ChunkedDistributedHiddenStatesToLogprobs,
    ChunkedDistributedLogprob,
    ChunkedDistributedLogprobWithSampling,
    DistributedCrossEntropy,
    DistributedLogprob,
    DistributedLogprobWithSampling,
    most_rows,
    own_columns,
)
from lockstep.distributed.checks import check_ids
from lockstep.distributed.mesh import mesh_group, vocab_range
from lockstep.distributed.packed import Packing
from lockstep.distributed.redistribute import all_to_all_sq2vp, all_to_all_vp2sq
from lockstep.distributed.reduce import rank, ranks, stack, summed
from lockstep.distributed.sampling import TrainingSamplingParams
from lockstep.distributed.shard import Shard
from lockstep.distributed.softmax import Scoring, picked
from lockstep.distributed.support import support_floor
from lockstep.distributed.topk import vocab_topk
from lockstep.distributed.vocab import log_softmax, vocab_logprobs

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
    "_compute_distributed_softmax",
    "_get_tokens_on_this_cp_rank",
    "all_to_all_sq2vp",
    "all_to_all_vp2sq",
    "allgather_cp_sharded_tensor",
    "distributed_vocab_topk",
    "dtensor_from_parallel_logits_to_logprobs",
    "from_parallel_hidden_states_to_logprobs",
    "from_parallel_logits_to_logprobs",
    "from_parallel_logits_to_logprobs_packed_sequences",
    "gather_logits_at_global_indices",
    "get_distillation_topk_logprobs_from_logits",
    "get_logprobs_from_vocab_parallel_logits",
    "get_next_token_logprobs_from_logits",
]


@torch.no_grad()
def _compute_distributed_log_softmax(vocab_parallel_logits: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's columns of the log-softmax, in the type of the logits; no gradient."""
    rows = vocab_parallel_logits.flatten(0, -2)
    return log_softmax(rows, group).view(vocab_parallel_logits.shape)


@torch.no_grad()
def _compute_distributed_softmax(vocab_parallel_logits: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """This rank's columns of the softmax, in the type of the logits; no gradient."""
    rows = vocab_parallel_logits.flatten(0, -2)
    return log_softmax(rows, group, exponential=True).view(vocab_parallel_logits.shape)


def _token_logprobs(
    logits: Tensor,
    target: Tensor,
    vocab: tuple[int, int],
    group: dist.ProcessGroup | None,
    inference_only: bool,
    chunk_size: int | None,
    sampling_params: TrainingSamplingParams | None,
) -> Tensor:
    """log p of targets that are shifted already, fp32, in their shape; under top-k and top-p where asked for."""
    rows, shard = own_columns(logits, *vocab), Shard(vocab[0], group)
    most = most_rows(logits.shape[:-2].numel(), chunk_size)
    floor = None
    if sampling_params is not None and not sampling_params.full_support:
        top_k, top_p = sampling_params.top_k, sampling_params.top_p
        floor = support_floor(rows, shard, top_k=top_k, top_p=top_p, most_rows=most)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not inference_only):
        logprob, _ = vocab_logprobs(rows, target.reshape(-1, 1), Scoring(shard=shard, most_rows=most), floor)
    return logprob.view(target.shape)


def from_parallel_logits_to_logprobs(
    vocab_parallel_logits: Tensor,
    target: Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    tp_group: dist.ProcessGroup | None,
    inference_only: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    chunk_size: int | None = None,
    sampling_params: TrainingSamplingParams | None = None,
) -> Tensor:
    """log π(target[:, t+1]) from the logits at t.

    Args:
        vocab_parallel_logits: This rank's columns and zig-zag share of the positions [B, S/CP, v].
        target: Token ids of the whole sequences, not shifted [B, S].
        vocab_start_index: This rank's first token id.
        vocab_end_index: One past its last.
        tp_group: The ranks that hold the vocabulary.
        inference_only: Keep nothing for a backward pass.
        cp_group: The ranks that hold the sequences.
        chunk_size: Bounds memory, in positions.
        sampling_params: Score under these filters, without their temperature.

    Returns:
        fp32 [B, S−1], the same on all ranks; −∞ for a token that the filters exclude.
    """
    check_ids("target", target, vocab_parallel_logits, dims=2)
    following = _own_positions(target.roll(-1, 1), vocab_parallel_logits.shape[1], cp_group)
    vocab = vocab_start_index, vocab_end_index
    logprob = _token_logprobs(
        vocab_parallel_logits, following, vocab, tp_group, inference_only, chunk_size, sampling_params
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
    sampling_params: TrainingSamplingParams | None = None,
    target_is_pre_rolled: bool = False,
) -> Tensor:
    """`from_parallel_logits_to_logprobs` for sequences laid end to end, with one exchange for all of them.

    Args:
        vocab_parallel_logits: [1, T/CP, v], each sequence cut zig-zag on its own.
        target: Token ids [1, T]; if pre-rolled, this rank's share of what follows each position [1, T/CP].
        cu_seqlens_padded: Where sequences begin, and where the last ends, counted over all context-parallel ranks,
            each length a multiple of 2·CP, integers [B+1] on the device of the logits.
        unpacked_seqlen: U, the width of the answer plus one.
        vocab_start_index: This rank's first token id.
        vocab_end_index: One past its last.
        group: The ranks that hold the vocabulary.
        inference_only: Keep nothing for a backward pass.
        cp_group: The ranks that hold the sequences.
        chunk_size: Bounds memory, in positions.
        sampling_params: Score under these filters, without their temperature.
        target_is_pre_rolled: See target.

    Returns:
        fp32 [B, U−1], the same on all ranks; 0 behind the end of a sequence.
    """
    if vocab_parallel_logits.dim() != 3 or len(vocab_parallel_logits) != 1:
        raise ValueError(f"packed logits are one row [1, T/CP, v], not {list(vocab_parallel_logits.shape)}")
    size = ranks(cp_group)
    packing = Packing(cu_seqlens_padded, vocab_parallel_logits.shape[1] * size, size)
    check_ids("target", target, vocab_parallel_logits, dims=2)
    expected = vocab_parallel_logits.shape[1] if target_is_pre_rolled else packing.tokens
    if target.shape[1] != expected:
        raise ValueError(f"target has {target.shape[1]} tokens, but these logits need {expected}")
    following = target[0]
    if not target_is_pre_rolled:
        following = following[packing.following()][packing.positions(rank(cp_group))]
    vocab = vocab_start_index, vocab_end_index
    logprob = _token_logprobs(
        vocab_parallel_logits, following[None], vocab, group, inference_only, chunk_size, sampling_params
    )
    everywhere = F.pad(stack(logprob[0], cp_group).flatten(), (0, 1))  # what lies nowhere reads the 0 at the end
    place = F.pad(packing.gathered(), (0, 1), value=packing.tokens)
    cells = place[packing.rows(max(unpacked_seqlen - 1, 0))]
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
    sampling_params: TrainingSamplingParams | None = None,
) -> Tensor:
    """log π(target[:, t+1]) from local logits, where a target's mesh with a dimension "cp" says how sequences are cut.

    Unlike the other wrappers it hands each rank its own gradient: a loss that every rank computes alike counts once.

    Args:
        vocab_parallel_logits: This rank's columns and share of the positions [B, S/CP, v].
        target: Token ids [B, S]; over context-parallel ranks a DTensor, in the order of the shares laid end to end.
        vocab_start_index: This rank's first token id.
        vocab_end_index: One past its last.
        tp_group: The ranks that hold the vocabulary.
        inference_only: Keep nothing for a backward pass.
        seq_index: The position of each token of that order [S]; needed over context-parallel ranks.
        chunk_size: Bounds memory, in positions.
        sampling_params: Score under these filters, without their temperature.

    Returns:
        fp32 [B, S−1] in the order of positions, the same on all ranks.
    """
    cp_group = mesh_group(target, "cp") if isinstance(target, DTensor) else None
    whole = target.full_tensor() if isinstance(target, DTensor) else target
    check_ids("target", whole, vocab_parallel_logits, dims=2)
    order = torch.arange(whole.shape[1], device=whole.device)
    if ranks(cp_group) > 1:
        assert seq_index is not None, "context-parallel targets need seq_index, the position of each of their tokens"
        order = seq_index.full_tensor() if isinstance(seq_index, DTensor) else seq_index
    place = order.flatten().argsort()
    following = whole[:, place].roll(-1, 1)[:, order.flatten()].chunk(ranks(cp_group), 1)[rank(cp_group)]
    vocab = vocab_start_index, vocab_end_index
    logprob = _token_logprobs(
        vocab_parallel_logits, following, vocab, tp_group, inference_only, chunk_size, sampling_params
    )
    everywhere = torch.cat(stack(logprob, cp_group, gradient="local").unbind(), 1)
    return everywhere.index_select(1, place)[:, :-1]


def get_logprobs_from_vocab_parallel_logits(
    vocab_parallel_logits: DTensor,
    input_ids: Tensor | DTensor,
    seq_index: Tensor | None = None,
    chunk_size: int | None = None,
    sampling_params: TrainingSamplingParams | None = None,
) -> Tensor:
    """`dtensor_from_parallel_logits_to_logprobs` of logits on a mesh with a dimension "tp", [B, S, V]."""
    names = vocab_parallel_logits.device_mesh.mesh_dim_names or ()
    assert seq_index is None or "cp" in names, f"seq_index needs a mesh dimension 'cp', but the mesh has {names}"
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
    sampling_params: TrainingSamplingParams | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """log π(input_ids[:, t+1]) from the logits at t, fp32 [B, S−1], sharded by groups, by a mesh, or not."""
    if isinstance(next_token_logits, DTensor):
        return get_logprobs_from_vocab_parallel_logits(
            next_token_logits, input_ids, seq_index=seq_index, chunk_size=chunk_size, sampling_params=sampling_params
        )
    shard = _ranked_shard(next_token_logits, vocab_parallel_rank, vocab_parallel_group)
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


def _get_tokens_on_this_cp_rank(input_ids: Tensor, cp_rank: int, cp_size: int, seq_dim: int = 1) -> Tensor:
    """What rank `cp_rank` of `cp_size` holds of a sequence: chunks r and 2·CP−1−r of 2·CP.

    Raises:
        ValueError: The length is no multiple of 2·CP.
    """
    positions = context.zigzag(input_ids.shape[seq_dim], cp_size, input_ids.device)[cp_rank]
    return input_ids if cp_size == 1 else input_ids.index_select(seq_dim, positions)


def allgather_cp_sharded_tensor(tensor: Tensor, cp_group: dist.ProcessGroup | None, seq_dim: int = 1) -> Tensor:
    """The whole sequence from every rank's zig-zag share; see `AllGatherCPTensor` for its gradient."""
    return AllGatherCPTensor.apply(tensor, cp_group, seq_dim)


def distributed_vocab_topk(
    vocab_parallel_logits: Tensor,
    k: int,
    tp_group: dist.ProcessGroup | None,
    *,
    vocab_start_index: int,
    vocab_end_index: int,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The min(k, V) largest logits at each position, in descending order, and their token ids; no gradient.

    Returns:
        fp32 and int64 [B, S, min(k, V)], the same on all ranks.
    """
    assert vocab_end_index > vocab_start_index, f"no columns between {vocab_start_index} and {vocab_end_index}"
    rows = own_columns(vocab_parallel_logits, vocab_start_index, vocab_end_index)
    most = most_rows(vocab_parallel_logits.shape[:-2].numel(), chunk_size)
    values, ids = vocab_topk(rows, k, Shard(vocab_start_index, tp_group), most_rows=most)
    shape = *vocab_parallel_logits.shape[:-1], values.shape[-1]
    return values.view(shape), ids.view(shape)


def gather_logits_at_global_indices(
    vocab_parallel_logits: Tensor,
    global_indices: Tensor,
    tp_group: dist.ProcessGroup | None = None,
    cp_group: dist.ProcessGroup | None = None,
    *,
    vocab_start_index: int,
    vocab_end_index: int,
    chunk_size: int | None = None,
) -> Tensor:
    """Logits [B, S/CP, v] at token ids [B, S, K] of whole sequences, fp32 [B, S, K]; differentiable.

    An id outside the vocabulary gives 0, and no gradient. The answer is small, so `chunk_size` has nothing to bound.
    """
    check_ids("global_indices", global_indices, vocab_parallel_logits, dims=3)
    length = global_indices.shape[1]
    rows = own_columns(vocab_parallel_logits, vocab_start_index, vocab_end_index)
    ids = _own_positions(global_indices, vocab_parallel_logits.shape[1], cp_group)
    logits = _picked(rows, ids.flatten(0, 1), Shard(vocab_start_index, tp_group))
    return context.gather(logits.view(ids.shape), cp_group)[:, :length]


def _picked(rows: Tensor, ids: Tensor, shard: Shard) -> Tensor:
    """Logits [M, v] at token ids [M, K], fp32 [M, K], summed over the ranks; 0 where no rank has the id."""
    own = picked(rows, ids, shard.start) if rows.shape[1] else rows.float().sum(-1, keepdim=True).expand(ids.shape)
    return summed(own, shard.group)


def get_distillation_topk_logprobs_from_logits(
    student_logits: Tensor,
    teacher_topk_logits: Tensor,
    teacher_topk_indices: Tensor,
    zero_outside_topk: bool,
    calculate_entropy: bool,
    vocab_parallel_rank: int | None = None,
    vocab_parallel_group: dist.ProcessGroup | None = None,
    context_parallel_group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The student's and the teacher's log-probabilities at the teacher's top k, from one softmax of the student.

    Args:
        student_logits: [B, S/CP, v], or a DTensor on a mesh with a dimension "tp".
        teacher_topk_logits: [B, S, K].
        teacher_topk_indices: Their token ids [B, S, K].
        zero_outside_topk: The student's probabilities are those of the whole vocabulary; else of these K tokens alone.
        calculate_entropy: Also Σ p log p of the student, over the whole vocabulary in either case.
        vocab_parallel_rank: This rank's place in its group.
        vocab_parallel_group: The ranks that hold the vocabulary.
        context_parallel_group: The ranks that hold the sequences.

    Returns:
        fp32 [B, S−1, K], fp32 [B, S−1, K], and fp32 [B, S−1] or None.

    Raises:
        ValueError: K is 0.
    """
    check_ids("teacher_topk_indices", teacher_topk_indices, student_logits, dims=3)
    if teacher_topk_logits.shape != teacher_topk_indices.shape:
        raise ValueError(
            f"the teacher has logits {list(teacher_topk_logits.shape)} for token ids {list(teacher_topk_indices.shape)}"
        )
    length, k = teacher_topk_indices.shape[1:]
    if k == 0:
        raise ValueError("teacher_topk_logits has no columns; distillation needs the teacher's top k with k > 0")
    if isinstance(student_logits, DTensor):
        shard = Shard(vocab_range(student_logits)[0], student_logits.device_mesh.get_group("tp"))
        context_parallel_group = mesh_group(student_logits, "cp")
        student_logits = student_logits.to_local()
    else:
        shard = _ranked_shard(student_logits, vocab_parallel_rank, vocab_parallel_group)
    ids = _own_positions(teacher_topk_indices, student_logits.shape[1], context_parallel_group).flatten(0, 1)
    rows = student_logits.flatten(0, 1)
    if zero_outside_topk or calculate_entropy:
        columns, entropy = vocab_logprobs(rows, ids, Scoring(shard=shard, entropy=calculate_entropy))
    else:  # the logits alone, so that no token outside the top k is moved, not even by rounding
        columns, entropy = _picked(rows, ids, shard), None
    both = columns if entropy is None else torch.cat([columns, -entropy[:, None]], 1)
    both = both.view(*student_logits.shape[:2], both.shape[1])
    both = context.gather(both, context_parallel_group)[:, : length - 1]
    student = both[..., :k] if zero_outside_topk else both[..., :k].log_softmax(-1)
    teacher = teacher_topk_logits[:, : length - 1].float().log_softmax(-1)
    return student, teacher, both[..., k] if calculate_entropy else None


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
    """log π(target[:, t+1]) from the hidden state at t, without ever holding the logits.

    Args:
        tensor_parallel_hidden_states: Positions first and in shards over the group [S/CP/TP, B, H].
        output_weight_layer: This rank's rows of the head [v, H].
        output_weight: Used instead where it is given, such as the weight shared with the embedding [v, H].
        runtime_gather_output: Not used; there are no logits to gather.
        target: Token ids, not shifted [B, S].
        vocab_start_index: This rank's first token id.
        vocab_end_index: One past its last.
        tp_group: The ranks that hold the vocabulary.
        inference_only: Keep nothing for a backward pass.
        cp_group: The ranks that hold the sequences.
        chunk_size: Bounds memory, in positions.

    Returns:
        fp32 [B, S−1].
    """
    weight = output_weight_layer if output_weight is None else output_weight
    if tensor_parallel_hidden_states.dim() != 3 or tensor_parallel_hidden_states.shape[1] != len(target):
        raise ValueError(
            f"hidden states are [positions, sequences, H], with {len(target)} sequences as the targets have, not "
            f"{list(tensor_parallel_hidden_states.shape)}"
        )
    positions = tensor_parallel_hidden_states.shape[0] * ranks(tp_group)
    logprob = ChunkedDistributedHiddenStatesToLogprobs.apply(
        tensor_parallel_hidden_states,
        _own_positions(target.roll(-1, 1), positions, cp_group),
        weight,
        vocab_start_index,
        vocab_end_index,
        chunk_size,
        tp_group,
        inference_only,
    )
    return context.gather(logprob, cp_group)[:, : max(target.shape[1] - 1, 0)]


def _ranked_shard(logits: Tensor, rank: int | None, group: dist.ProcessGroup | None) -> Shard:
    """The shard of a rank where all hold equally many columns."""
    assert group is None or rank is not None, "vocab_parallel_rank is needed beside vocab_parallel_group"
    return Shard(0) if group is None or rank is None else Shard(rank * logits.shape[-1], group)


def _own_positions(whole: Tensor, positions: int, cp_group: dist.ProcessGroup | None) -> Tensor:
    """This rank's zig-zag share of token ids [B, S, ...], padded with 0 to `positions` on every rank."""
    padding = positions * ranks(cp_group) - whole.shape[1]
    if padding < 0:
        raise ValueError(
            f"{whole.shape[1]} tokens for logits at {positions * ranks(cp_group)} positions over {ranks(cp_group)} "
            "context-parallel ranks; logits must cover every token, and cp_group be given where sequences are cut"
        )
    return context.take(F.pad(whole, (0, 0) * (whole.dim() - 2) + (0, padding)), cp_group)
