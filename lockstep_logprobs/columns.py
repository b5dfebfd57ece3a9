"""Columns of a sharded vocabulary: softmax, top k, chosen columns and distillation.

Names are those of `model_utils`. A rank holds the columns [vocab_start_index, vocab_end_index).
Groups of None mean one process, and `chunk_size` bounds memory without changing a value. Functions
that take a group but no range assume that all ranks hold the same number of columns.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from lockstep_logprobs import context
from lockstep_logprobs.autograd import block_rows, own_columns
from lockstep_logprobs.checks import check_ids
from lockstep_logprobs.collectives import all_gather, group_rank, sum_over_ranks
from lockstep_logprobs.mesh import mesh_group, vocab_range
from lockstep_logprobs.shard import Shard, even_shard
from lockstep_logprobs.softmax import Scoring, pick_logits
from lockstep_logprobs.topk import vocab_topk
from lockstep_logprobs.vocab import vocab_log_softmax, vocab_logprobs, vocab_softmax


def _compute_distributed_log_softmax_with_grad(
    vocab_parallel_logits: Tensor, group: dist.ProcessGroup | None
) -> Tensor:
    """This rank's columns of the log-softmax, in the type of the logits; differentiable."""
    rows = vocab_parallel_logits.flatten(0, -2)
    return vocab_log_softmax(rows, group).view(vocab_parallel_logits.shape)


@torch.no_grad()
def _compute_distributed_log_softmax(
    vocab_parallel_logits: Tensor, group: dist.ProcessGroup | None
) -> Tensor:
    """`_compute_distributed_log_softmax_with_grad` without gradient."""
    return _compute_distributed_log_softmax_with_grad(vocab_parallel_logits, group)


def _compute_distributed_softmax(
    vocab_parallel_logits: Tensor, group: dist.ProcessGroup | None
) -> Tensor:
    """This rank's columns of the softmax, in the type of the logits; no gradient."""
    rows = vocab_parallel_logits.flatten(0, -2)
    return vocab_softmax(rows, group).view(vocab_parallel_logits.shape)


def vocab_parallel_log_softmax(
    logits: Tensor, temperature: float, *, tp_group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's columns of log softmax(logits / temperature), fp32; differentiable.

    Args:
        logits: This rank's columns [..., v], or a DTensor of them.
        temperature: Divides the logits.
        tp_group: Ranks that hold the vocabulary.
    """
    own = _take_local_part(logits)
    return vocab_log_softmax(own.flatten(0, -2), tp_group, temperature, torch.float32).view(
        own.shape
    )


def vocab_parallel_full_log_softmax(
    logits: Tensor, temperature: float, *, tp_group: dist.ProcessGroup | None = None
) -> Tensor:
    """`vocab_parallel_log_softmax` with the columns of all ranks, [..., V] on each.

    A loss that every rank computes alike counts once: each rank keeps the gradient of its columns.
    """
    own = vocab_parallel_log_softmax(logits, temperature, tp_group=tp_group)
    return torch.cat(all_gather(own, tp_group, gradient="local").unbind(), -1)


def vocab_parallel_gather_columns(
    logits: Tensor, column_indices: Tensor, *, tp_group: dist.ProcessGroup | None = None
) -> Tensor:
    """The same K columns of the logits at every position; differentiable.

    Args:
        logits: This rank's columns [..., v], or a DTensor of them.
        column_indices: Global token ids [K].
        tp_group: Ranks that hold the vocabulary.

    Returns:
        fp32 [..., K]; 0, without gradient, for an id outside the vocabulary.
    """
    own = _take_local_part(logits)
    rows = own.flatten(0, -2)
    shard = even_shard(own.shape[-1], tp_group, group_rank(tp_group))
    columns = _gather_logits(rows, column_indices.expand(len(rows), -1), shard)
    return columns.view(*own.shape[:-1], len(column_indices))


def vocab_parallel_argmax(logits: Tensor, *, tp_group: dist.ProcessGroup | None = None) -> Tensor:
    """The id of the largest logit at each position, int64, the same on all ranks; no gradient."""
    own = _take_local_part(logits)
    shard = even_shard(own.shape[-1], tp_group, group_rank(tp_group))
    _, token_M1 = vocab_topk(own.flatten(0, -2), 1, shard)
    return token_M1.view(own.shape[:-1])


def _take_local_part(logits: Tensor) -> Tensor:
    """This rank's part of a DTensor; returns other tensors unchanged."""
    if isinstance(logits, DTensor):
        return logits.to_local()
    return logits


def distributed_vocab_topk(
    vocab_parallel_logits: Tensor,
    k: int,
    tp_group: dist.ProcessGroup | None,
    *,
    vocab_start_index: int,
    vocab_end_index: int,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The min(k, V) largest logits at each position, descending, and their token ids; no gradient.

    Returns:
        fp32 and int64 [B, S, min(k, V)], the same on all ranks.
    """
    assert vocab_end_index > vocab_start_index, (
        f"no columns between {vocab_start_index} and {vocab_end_index}"
    )
    rows = own_columns(vocab_parallel_logits, vocab_start_index, vocab_end_index)
    most = block_rows(vocab_parallel_logits.shape[:-2].numel(), chunk_size)
    values, ids = vocab_topk(rows, k, Shard(vocab_start_index, tp_group), max_rows=most)
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
    """Logits [B, S/CP, v] at token ids [B, S, K] of full sequences, fp32 [B, S, K].

    Differentiable. An id outside the vocabulary gives 0, and no gradient. `chunk_size` is ignored:
    the result is small.
    """
    check_ids("global_indices", global_indices, vocab_parallel_logits, dims=3)
    length = global_indices.shape[1]
    rows = own_columns(vocab_parallel_logits, vocab_start_index, vocab_end_index)
    ids = context.take_padded(global_indices, vocab_parallel_logits.shape[1], cp_group)
    logits = _gather_logits(rows, ids.flatten(0, 1), Shard(vocab_start_index, tp_group))
    return context.gather(logits.view(ids.shape), cp_group)[:, :length]


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
    """The student's and the teacher's log-probabilities at the teacher's top k tokens.

    One softmax of the student.

    Args:
        student_logits: [B, S/CP, v], or a DTensor on a mesh with a dimension "tp".
        teacher_topk_logits: [B, S, K].
        teacher_topk_indices: Their token ids [B, S, K].
        zero_outside_topk: Normalize the student over the full vocabulary; otherwise over these K
            tokens only.
        calculate_entropy: Also return Σ p log p of the student, always over the full vocabulary.
        vocab_parallel_rank: This rank's index in its group.
        vocab_parallel_group: Ranks that hold the vocabulary.
        context_parallel_group: Ranks that hold the sequences.

    Returns:
        fp32 [B, S−1, K], fp32 [B, S−1, K], and fp32 [B, S−1] or None.

    Raises:
        ValueError: K is 0.
    """
    check_ids("teacher_topk_indices", teacher_topk_indices, student_logits, dims=3)
    if teacher_topk_logits.shape != teacher_topk_indices.shape:
        raise ValueError(
            f"teacher logits {list(teacher_topk_logits.shape)} and token ids "
            f"{list(teacher_topk_indices.shape)} differ in shape"
        )
    length, k = teacher_topk_indices.shape[1:]
    if k == 0:
        raise ValueError("topk must be positive, but teacher_topk_logits has no columns")
    if isinstance(student_logits, DTensor):
        shard = Shard(vocab_range(student_logits)[0], student_logits.device_mesh.get_group("tp"))
        context_parallel_group = mesh_group(student_logits, "cp")
        student_logits = student_logits.to_local()
    else:
        shard = even_shard(student_logits.shape[-1], vocab_parallel_group, vocab_parallel_rank)
    ids = context.take_padded(
        teacher_topk_indices, student_logits.shape[1], context_parallel_group
    ).flatten(0, 1)
    rows = student_logits.flatten(0, 1)
    if zero_outside_topk or calculate_entropy:
        columns, entropy = vocab_logprobs(
            rows, ids, Scoring(shard=shard, entropy=calculate_entropy)
        )
    else:  # from the K logits only, so that tokens outside the top k get a gradient of exactly 0
        columns = _gather_logits(rows, ids, shard)
        entropy = None
    if entropy is None:
        both = columns
    else:
        both = torch.cat([columns, -entropy[:, None]], 1)
    both = both.view(*student_logits.shape[:2], both.shape[1])
    both = context.gather(both, context_parallel_group)[:, : length - 1]
    student = both[..., :k] if zero_outside_topk else both[..., :k].log_softmax(-1)
    teacher = teacher_topk_logits[:, : length - 1].float().log_softmax(-1)
    return student, teacher, both[..., k] if calculate_entropy else None


def _gather_logits(rows: Tensor, ids: Tensor, shard: Shard) -> Tensor:
    """Logits [M, v] at token ids [M, K], fp32, summed over the ranks; 0 if no rank has the id."""
    if rows.shape[1]:
        own = pick_logits(rows, ids, shard.start)
    else:
        own = rows.float().sum(-1, keepdim=True).expand(ids.shape)
    return sum_over_ranks(own, shard.group)
