"""The nine autograd functions of `model_utils`, with NeMo RL's names, parameters and shapes.

`apply` takes the parameters of `forward` without `ctx`, by position. Targets are already shifted:
logits at t score target t. Logits are [B, S, v], with this rank's columns [vocab_start_index,
vocab_end_index) of the vocabulary; columns past the end are padding and excluded from the softmax.
`chunk_size` bounds memory, in positions of dimension 1, and never changes a value. Results are
fp32; gradients have the logits' type. With `inference_only`, nothing is kept for a backward pass.
Results are copies of what is saved for backward, so a caller may change them in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from lockstep_logprobs import context, hidden, vocab
from lockstep_logprobs.checks import check_head, check_range
from lockstep_logprobs.collectives import all_gather, group_rank, group_size, reduce_scatter
from lockstep_logprobs.gradient import load_gradient, save_for_gradient
from lockstep_logprobs.shard import Shard, even_shard
from lockstep_logprobs.soft_targets import cross_entropy, cross_entropy_gradient
from lockstep_logprobs.softmax import RowScores, Scoring
from lockstep_logprobs.support import support_floor


def own_columns(logits: Tensor, vocab_start_index: int, vocab_end_index: int) -> Tensor:
    """The logits as rows [M, v], without the padding beyond this rank's end of the vocabulary.

    Raises:
        ValueError: Fewer columns than the range.
    """
    held = logits.shape[-1]
    check_range(vocab_start_index, vocab_end_index, held, f"its {held} columns of logits")
    return logits.flatten(0, -2)[:, : vocab_end_index - vocab_start_index]


def block_rows(sequences: int, chunk_size: int | None) -> int | None:
    """Number of rows per block for `chunk_size` positions of each sequence; None for no bound."""
    if chunk_size is None:
        return None
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    return max(1, chunk_size * sequences)


def _score_and_save(
    ctx: Any,
    logits: Tensor,
    token: Tensor,
    scoring: Scoring,
    vocab_end_index: int,
    inference_only: bool,
    floor: Tensor | None = None,
) -> RowScores:
    """Scores tokens [..., K] of logits [..., v], and saves the inputs of their gradient."""
    rows = own_columns(logits, scoring.shard.start, vocab_end_index)
    scores = vocab.score_vocab(rows, token.reshape(len(rows), token.shape[-1]), scoring, floor)
    if not inference_only:
        ctx.shape = logits.shape
        save_for_gradient(ctx, scores, scoring, floor, rows)
    return scores


def _compute_gradient(ctx: Any, of_logprob: Tensor, of_entropy: Tensor | None = None) -> Tensor:
    """Gradient of the logits, in their shape, from those of log p [M, K] and entropies [M]."""
    gradient = vocab.score_gradient(ctx, of_logprob, of_entropy)
    padding = ctx.shape[-1] - gradient.shape[-1]
    return (F.pad(gradient, (0, padding)) if padding else gradient).view(ctx.shape)


class ChunkedDistributedLogprob(torch.autograd.Function):
    """log p of targets [B, S]; 0, without gradient, for a target outside the vocabulary."""

    @staticmethod
    def forward(
        ctx: Any,
        vocab_parallel_logits: Tensor,
        target: Tensor,
        vocab_start_index: int,
        vocab_end_index: int,
        chunk_size: int | None,
        tp_group: dist.ProcessGroup | None,
        inference_only: bool = False,
    ) -> Tensor:
        scoring = Scoring(
            shard=Shard(vocab_start_index, tp_group),
            max_rows=block_rows(vocab_parallel_logits.shape[:-2].numel(), chunk_size),
        )
        scores = _score_and_save(
            ctx, vocab_parallel_logits, target[..., None], scoring, vocab_end_index, inference_only
        )
        return scores.logprob.view(target.shape).clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return _compute_gradient(ctx, grad_outputs[0].reshape(-1, 1)), *[None] * 6


class DistributedLogprob(torch.autograd.Function):
    """`ChunkedDistributedLogprob` without a chunk size."""

    @staticmethod
    def forward(
        ctx: Any,
        vocab_parallel_logits: Tensor,
        target: Tensor,
        vocab_start_index: int,
        vocab_end_index: int,
        group: dist.ProcessGroup | None,
        inference_only: bool = False,
    ) -> Tensor:
        return ChunkedDistributedLogprob.forward(
            ctx,
            vocab_parallel_logits,
            target,
            vocab_start_index,
            vocab_end_index,
            None,
            group,
            inference_only,
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return ChunkedDistributedLogprob.backward(ctx, *grad_outputs)[:-1]


class ChunkedDistributedGatherLogprob(torch.autograd.Function):
    """log p of K ids at each position, [B, S, K]; the gradients of a repeated id add up."""

    @staticmethod
    def forward(
        ctx: Any,
        vocab_parallel_logits: Tensor,
        global_indices: Tensor,
        vocab_start_index: int,
        vocab_end_index: int,
        chunk_size: int | None,
        tp_group: dist.ProcessGroup | None,
        inference_only: bool = False,
    ) -> Tensor:
        scoring = Scoring(
            shard=Shard(vocab_start_index, tp_group),
            max_rows=block_rows(vocab_parallel_logits.shape[:-2].numel(), chunk_size),
        )
        scores = _score_and_save(
            ctx, vocab_parallel_logits, global_indices, scoring, vocab_end_index, inference_only
        )
        return scores.logprob.view(global_indices.shape).clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return _compute_gradient(ctx, grad_outputs[0].flatten(0, -2)), *[None] * 6


class ChunkedDistributedEntropy(torch.autograd.Function):
    """Σ p log p of each position [B, S]: the *negative* entropy, as users of this name expect."""

    @staticmethod
    def forward(
        ctx: Any,
        vocab_parallel_logits: Tensor,
        chunk_size: int | None,
        tp_group: dist.ProcessGroup | None,
        inference_only: bool = False,
    ) -> Tensor:
        columns = vocab_parallel_logits.shape[-1]
        scoring = Scoring(
            shard=Shard(0, tp_group),
            entropy=True,
            max_rows=block_rows(vocab_parallel_logits.shape[:-2].numel(), chunk_size),
        )
        nothing = torch.empty(
            *vocab_parallel_logits.shape[:-1],
            0,
            dtype=torch.int64,
            device=vocab_parallel_logits.device,
        )
        scores = _score_and_save(
            ctx, vocab_parallel_logits, nothing, scoring, columns, inference_only
        )
        assert scores.entropy is not None
        return scores.entropy.view(vocab_parallel_logits.shape[:-1]).neg()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        of_entropy = grad_outputs[0].reshape(-1).neg()
        return (
            _compute_gradient(ctx, of_entropy.new_empty(len(of_entropy), 0), of_entropy),
            None,
            None,
            None,
        )


class ChunkedDistributedLogprobWithSampling(torch.autograd.Function):
    """log p of targets [B, S], renormalized over the tokens that top-k and then top-p keep.

    −∞ for an excluded target. All ranks hold the same number of columns. The logits are already
    divided by the temperature.
    """

    @staticmethod
    def forward(
        ctx: Any,
        vocab_parallel_logits: Tensor,
        target: Tensor,
        tp_group: dist.ProcessGroup | None,
        top_k: int | None,
        top_p: float,
        chunk_size: int | None,
        inference_only: bool = False,
    ) -> Tensor:
        columns = vocab_parallel_logits.shape[-1]
        most = block_rows(vocab_parallel_logits.shape[:-2].numel(), chunk_size)
        shard = even_shard(columns, tp_group, group_rank(tp_group))
        floor = support_floor(
            vocab_parallel_logits.flatten(0, -2), shard, top_k=top_k, top_p=top_p, max_rows=most
        )
        scores = _score_and_save(
            ctx,
            vocab_parallel_logits,
            target[..., None],
            Scoring(shard=shard, max_rows=most),
            shard.start + columns,
            inference_only,
            floor,
        )
        return scores.logprob.view(target.shape).clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return _compute_gradient(ctx, grad_outputs[0].reshape(-1, 1)), *[None] * 6


class DistributedLogprobWithSampling(torch.autograd.Function):
    """`ChunkedDistributedLogprobWithSampling` without a chunk size."""

    @staticmethod
    def forward(
        ctx: Any,
        vocab_parallel_logits: Tensor,
        target: Tensor,
        tp_group: dist.ProcessGroup | None,
        top_k: int | None,
        top_p: float,
        inference_only: bool = False,
    ) -> Tensor:
        return ChunkedDistributedLogprobWithSampling.forward(
            ctx, vocab_parallel_logits, target, tp_group, top_k, top_p, None, inference_only
        )

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return ChunkedDistributedLogprobWithSampling.backward(ctx, *grad_outputs)[:-1]


class DistributedCrossEntropy(torch.autograd.Function):
    """−Σ q log p of each position, p the student's and q the target's softmax.

    The gradient goes to the student.
    """

    @staticmethod
    def forward(
        ctx: Any,
        student_logits: Tensor,
        target_logits: Tensor,
        group: dist.ProcessGroup | None,
        inference_only: bool = False,
    ) -> Tensor:
        if student_logits.shape != target_logits.shape:
            raise ValueError(
                "student and target logits must have the same shape, not "
                f"{tuple(student_logits.shape)} and {tuple(target_logits.shape)}"
            )
        student = student_logits.flatten(0, -2)
        target = target_logits.flatten(0, -2)
        result = cross_entropy(student, target, group)
        if not inference_only:
            ctx.shape = student_logits.shape
            ctx.save_for_backward(student, target, result.maxima, result.log_totals)
        return result.value.view(student_logits.shape[:-1]).clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        student, target, maxima, log_totals = ctx.saved_tensors
        gradient = cross_entropy_gradient(
            student, target, maxima, log_totals, grad_outputs[0].reshape(-1)
        )
        return gradient.view(ctx.shape), None, None, None


class ChunkedDistributedHiddenStatesToLogprobs(torch.autograd.Function):
    """log p of targets [B, S] from sequence-parallel hidden states and this rank's head rows.

    Hidden states are [S/TP, B, H], head rows [v, H].
    """

    @staticmethod
    def forward(
        ctx: Any,
        tensor_parallel_hidden_states: Tensor,
        target: Tensor,
        output_weight_layer: Tensor,
        vocab_start_index: int,
        vocab_end_index: int,
        chunk_size: int | None,
        tp_group: dist.ProcessGroup | None,
        inference_only: bool = False,
    ) -> Tensor:
        batch, positions = target.shape
        check_head(tensor_parallel_hidden_states.flatten(0, 1), output_weight_layer)
        held = len(output_weight_layer)
        check_range(vocab_start_index, vocab_end_index, held, f"the {held} rows of its head")
        # not saved: backward gathers again
        rows = all_gather(tensor_parallel_hidden_states, tp_group).flatten(0, 2)
        weight = output_weight_layer[: vocab_end_index - vocab_start_index]
        scoring = Scoring(
            shard=Shard(vocab_start_index, tp_group), max_rows=block_rows(batch, chunk_size)
        )
        scores = hidden.score_hidden(rows, weight, target.t().reshape(-1, 1), scoring)
        if not inference_only:
            ctx.shapes = tensor_parallel_hidden_states.shape, output_weight_layer.shape
            save_for_gradient(ctx, scores, scoring, None, tensor_parallel_hidden_states, weight)
        return scores.logprob.view(positions, batch).t().clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        shard, head = ctx.shapes
        needed = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        row, (own, weight) = load_gradient(ctx, grad_outputs[0].t().reshape(-1, 1), None)
        group = ctx.scoring.shard.group
        rows = all_gather(own, group).flatten(0, 2)
        of_rows, of_weight = hidden.score_gradient(row, rows, weight, ctx.scoring, *needed)
        if of_rows is not None:
            of_rows = reduce_scatter(of_rows.view(group_size(group), *shard), group)
        if of_weight is not None and len(of_weight) < head[0]:
            of_weight = F.pad(of_weight, (0, 0, 0, head[0] - len(of_weight)))
        return of_rows, None, of_weight, *[None] * 5


class AllGatherCPTensor(torch.autograd.Function):
    """All-gather of a sequence from zig-zag shares; backward reduce-scatters the gradient."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, cp_group: dist.ProcessGroup | None, seq_dim: int = 1
    ) -> Tensor:
        ctx.cp_group = cp_group
        ctx.seq_dim = seq_dim
        return context.gather(tensor.view_as(tensor), cp_group, seq_dim)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        gradient = grad_outputs[0]
        positions = context.zigzag_positions(
            gradient.shape[ctx.seq_dim], group_size(ctx.cp_group), gradient.device
        )
        shares = torch.stack([gradient.index_select(ctx.seq_dim, held) for held in positions])
        return reduce_scatter(shares, ctx.cp_group), None, None
