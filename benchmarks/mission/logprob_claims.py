"""What each of the 26 names claims at the model's vocabulary: its results, the same in float64, and
bounds on both.

A claim is made on a rank, with its share of the model's own logits or hidden states;
`logprob_checks` measures it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.mission.logprob_bounds import U_BF16, Rows, of_products, of_sum
from benchmarks.mission.logprob_places import PACKED, Place
from lockstep_logprobs import model_utils

K = 8
TOP_K = 50
TOP_P = 0.9
CHUNK = 8


@dataclass(frozen=True)
class Leaf:
    """An input that gets a gradient.

    Attributes:
        own: This rank's share.
        whole: All of it in float64.
        cut: This rank's share of a tensor like `whole`.
    """

    own: Tensor
    whole: Tensor
    cut: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Claim:
    """Results of a function, and what they are held against.

    Attributes:
        results: The function's.
        wanted: The same in float64.
        bounds: How far each may be off; 0: not at all.
        leaves: Inputs with gradients; none: the function has no gradient.
        gradient_bounds: For upstream gradients of all results, a bound on the gradient of each
            leaf, as whole tensors.
        times: What the gradient is a multiple of, where every context-parallel rank computes the
            same loss.
    """

    results: Sequence[Tensor]
    wanted: Sequence[Tensor]
    bounds: Sequence[Tensor | float]
    leaves: Sequence[Leaf] = ()
    gradient_bounds: Callable[[Sequence[Tensor]], Sequence[Tensor | float]] = field(
        default=lambda upstream: ()
    )
    times: int = 1


@dataclass(frozen=True)
class Inputs:
    """The model's own tensors on a rank, in one type.

    Attributes:
        place: The rank.
        dtype: Type of logits, hidden states and head.
        logits: Whole logits [B, S, V].
        hidden: Hidden states [B, S, H].
        weight: The head [V, H].
        target: The text's tokens [B, S].
    """

    place: Place
    dtype: torch.dtype
    logits: Tensor
    hidden: Tensor
    weight: Tensor
    target: Tensor

    def leaf(self, bounds: tuple[int, ...] | None = None) -> Leaf:
        """The logits; with bounds of sequences, as one packed row."""
        whole = self.logits if bounds is None else self.logits.flatten(0, 1)[None]
        cut = lambda x: self.place.cut(x, bounds)  # noqa: E731
        own = cut(whole).contiguous().requires_grad_()
        return Leaf(own, whole.double().requires_grad_(), cut)

    @property
    def ids(self) -> Tensor:
        """Ids of K columns at each position [B, S, K]: the likeliest."""
        return self.logits.float().topk(K).indices

    @property
    def inside(self) -> Tensor:
        """A token that top-k and top-p keep at each position: the likeliest."""
        return self.logits.float().argmax(-1)

    @property
    def next_target(self) -> Tensor:
        return self.target.roll(-1, -1)


def log_softmax(of: Inputs) -> Claim:
    leaf = of.leaf()
    result = model_utils._compute_distributed_log_softmax(leaf.own, of.place.tp_group)
    wanted = leaf.cut(leaf.whole.log_softmax(-1).detach())
    bound = leaf.cut(Rows(leaf.whole.detach()).of_picked().expand_as(leaf.whole))
    return Claim([result], [wanted], [bound])


def softmax(of: Inputs) -> Claim:
    leaf = of.leaf()
    result = model_utils._compute_distributed_softmax(leaf.own, of.place.tp_group)
    wanted = leaf.cut(leaf.whole.softmax(-1).detach())
    return Claim([result], [wanted], [leaf.cut(Rows(leaf.whole.detach()).of_softmax())])


def _picked(
    leaf: Leaf, result: Tensor, ids: Tensor, keep: Callable[[Tensor], Tensor] = lambda z: z
) -> Claim:
    """log p of one token or K tokens at each position of `leaf`, over the columns that `keep`
    leaves.
    """
    several = ids if ids.dim() == leaf.whole.dim() else ids[..., None]
    kept = keep(leaf.whole)
    wanted = kept.log_softmax(-1).gather(-1, several)
    rows = Rows(kept.detach())

    def gradient_bounds(upstream: Sequence[Tensor]) -> list[Tensor]:
        return [rows.of_picked_gradient(upstream[0].view(several.shape), several)]

    bound = rows.of_picked().expand_as(wanted).view(ids.shape)
    return Claim([result], [wanted.view(ids.shape)], [bound], [leaf], gradient_bounds)


def logprob(of: Inputs) -> Claim:
    leaf = of.leaf()
    result = model_utils.DistributedLogprob.apply(
        leaf.own, of.target, *of.place.span, of.place.tp_group
    )
    return _picked(leaf, result, of.target)


def chunked_logprob(of: Inputs) -> Claim:
    leaf = of.leaf()
    result = model_utils.ChunkedDistributedLogprob.apply(
        leaf.own, of.target, *of.place.span, CHUNK, of.place.tp_group
    )
    return _picked(leaf, result, of.target)


def gather_logprob(of: Inputs) -> Claim:
    leaf = of.leaf()
    result = model_utils.ChunkedDistributedGatherLogprob.apply(
        leaf.own, of.ids, *of.place.span, CHUNK, of.place.tp_group
    )
    return _picked(leaf, result, of.ids)


def keep_support(logits: Tensor) -> Tensor:
    """-inf outside of the TOP_K likeliest, and of these outside of the likeliest that make up
    TOP_P; ties stay.
    """
    least = logits.detach().topk(TOP_K).values[..., -1:]
    logits = logits.masked_fill(logits.detach() < least, -torch.inf)
    p, order = logits.detach().softmax(-1).sort(descending=True)
    outside = torch.empty_like(p, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p >= TOP_P)
    floor = logits.detach().masked_fill(outside, torch.inf).amin(-1, keepdim=True)
    return logits.masked_fill(logits.detach() < floor, -torch.inf)


def sampled_logprob(of: Inputs) -> Claim:
    leaf = of.leaf()
    options = (of.place.tp_group, TOP_K, TOP_P)
    result = model_utils.DistributedLogprobWithSampling.apply(leaf.own, of.inside, *options)
    return _picked(leaf, result, of.inside, keep_support)


def chunked_sampled_logprob(of: Inputs) -> Claim:
    leaf = of.leaf()
    options = (of.place.tp_group, TOP_K, TOP_P, CHUNK)
    result = model_utils.ChunkedDistributedLogprobWithSampling.apply(leaf.own, of.inside, *options)
    return _picked(leaf, result, of.inside, keep_support)


def cross_entropy(of: Inputs) -> Claim:
    """Between the model and itself at half the logits, which is exact in any type."""
    leaf = of.leaf()
    result = model_utils.DistributedCrossEntropy.apply(
        leaf.own, leaf.own.detach() / 2, of.place.tp_group
    )
    teacher = leaf.whole.detach() / 2
    p = teacher.softmax(-1)
    logprob = leaf.whole.log_softmax(-1)
    wanted = -(p * logprob).sum(-1)
    student = Rows(leaf.whole.detach())
    other = Rows(teacher)
    bound = (student.error + other.error * (wanted.detach()[..., None] + 1))[..., 0]

    def gradient_bounds(upstream: Sequence[Tensor]) -> list[Tensor]:
        return [upstream[0].abs()[..., None] * (student.of_softmax() + other.of_softmax())]

    return Claim([result], [wanted], [bound], [leaf], gradient_bounds)


def entropy(of: Inputs) -> Claim:
    leaf = of.leaf()
    result = model_utils.ChunkedDistributedEntropy.apply(leaf.own, CHUNK, of.place.tp_group)
    logprob = leaf.whole.log_softmax(-1)
    rows = Rows(leaf.whole.detach())
    wanted = (logprob.exp() * logprob).sum(-1)
    return Claim(
        [result], [wanted], [rows.of_entropy()], [leaf], lambda g: [rows.of_entropy_gradient(g[0])]
    )


def _next(of: Inputs, leaf: Leaf, result: Tensor, times: int) -> Claim:
    """log p of the next token [B, S - 1]."""
    wanted = leaf.whole.log_softmax(-1).gather(-1, of.next_target[..., None])[..., 0]
    rows = Rows(leaf.whole.detach())

    def gradient_bounds(upstream: Sequence[Tensor]) -> list[Tensor]:
        padded = F.pad(upstream[0], (0, 1))[..., None]
        return [rows.of_picked_gradient(padded, of.next_target[..., None])]

    bound = rows.of_picked()[:, :-1, 0]
    return Claim([result], [wanted[:, :-1]], [bound], [leaf], gradient_bounds, times)


def from_logits(of: Inputs) -> Claim:
    leaf = of.leaf()
    place = of.place
    result = model_utils.from_parallel_logits_to_logprobs(
        leaf.own, of.target, *place.span, place.tp_group, False, place.cp_group
    )
    return _next(of, leaf, result, place.cp)


def next_token(of: Inputs) -> Claim:
    leaf = of.leaf()
    place = of.place
    result = model_utils.get_next_token_logprobs_from_logits(
        of.target, leaf.own, None, place.tp_rank, place.tp_group, place.cp_group
    )
    return _next(of, leaf, result, place.cp)


def dtensor_target(of: Inputs) -> Claim:
    leaf = of.leaf()
    place = of.place
    index = place.positions_of_ranks(of.target.shape[1]) if place.cp > 1 else None
    result = model_utils.dtensor_from_parallel_logits_to_logprobs(
        leaf.own, place.deal_tokens(of.target), *place.span, place.tp_group, False, index
    )
    return _next(of, leaf, result, 1)


def dtensor_logits(of: Inputs) -> Claim:
    leaf = of.leaf()
    place = of.place
    index = place.positions_of_ranks(of.target.shape[1]) if place.cp > 1 else None
    result = model_utils.get_logprobs_from_vocab_parallel_logits(
        place.deal_logits(leaf.own), place.deal_tokens(of.target), index
    )
    return _next(of, leaf, result, 1)


def packed(of: Inputs) -> Claim:
    """Three sequences in one row; each but its last position is scored, and shorter ones are filled
    with 0.
    """
    leaf = of.leaf(PACKED)
    place = of.place
    row = of.target.flatten()[None]
    width = max(end - start for start, end in itertools.pairwise(PACKED))
    result = model_utils.from_parallel_logits_to_logprobs_packed_sequences(
        leaf.own,
        row,
        torch.tensor(PACKED),
        width,
        *place.span,
        place.tp_group,
        False,
        place.cp_group,
    )
    ids = torch.cat([row[0, start:end].roll(-1) for start, end in itertools.pairwise(PACKED)])[None]
    scored = leaf.whole.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    rows = Rows(leaf.whole.detach())

    def lay_out(values: Tensor) -> Tensor:
        pieces = [values[0, start : end - 1] for start, end in itertools.pairwise(PACKED)]
        return torch.stack([F.pad(piece, (0, width - 1 - len(piece))) for piece in pieces])

    def gradient_bounds(upstream: Sequence[Tensor]) -> list[Tensor]:
        back = torch.zeros_like(scored)
        for values, (start, end) in zip(upstream[0], itertools.pairwise(PACKED), strict=True):
            back[0, start : end - 1] = values[: end - 1 - start]
        return [rows.of_picked_gradient(back[..., None], ids[..., None])]

    bound = lay_out(rows.of_picked()[..., 0])
    return Claim([result], [lay_out(scored)], [bound], [leaf], gradient_bounds, place.cp)


def distillation(of: Inputs) -> Claim:
    """A teacher whose logits are half the model's, at its K likeliest tokens, with the student's
    entropy.
    """
    leaf = of.leaf()
    place = of.place
    teacher = of.logits.float().gather(-1, of.ids) / 2
    results = model_utils.get_distillation_topk_logprobs_from_logits(
        leaf.own, teacher, of.ids, True, True, place.tp_rank, place.tp_group, place.cp_group
    )
    logprob = leaf.whole.log_softmax(-1)
    rows = Rows(leaf.whole.detach())
    ids = of.ids
    columns = logprob.gather(-1, ids)[:, :-1]
    whole_teacher = teacher.double().log_softmax(-1)[:, :-1]
    entropy = (logprob.exp() * logprob).sum(-1)[:, :-1]

    def gradient_bounds(upstream: Sequence[Tensor]) -> list[Tensor]:
        of_columns = F.pad(upstream[0], (0, 0, 0, 1))
        return [
            rows.of_picked_gradient(of_columns, ids)
            + rows.of_entropy_gradient(F.pad(upstream[2], (0, 1)))
        ]

    bounds = [
        rows.of_picked()[:, :-1].expand_as(columns),
        Rows(teacher.double()).of_picked()[:, :-1].expand_as(columns),
        rows.of_entropy()[:, :-1],
    ]
    found = [result for result in results if result is not None]
    return Claim(
        found, [columns, whole_teacher, entropy], bounds, [leaf], gradient_bounds, place.cp
    )


def top_k(of: Inputs) -> Claim:
    leaf = of.leaf()
    start, end = of.place.span
    values, ids = model_utils.distributed_vocab_topk(
        leaf.own.detach(),
        K,
        of.place.tp_group,
        vocab_start_index=start,
        vocab_end_index=end,
        chunk_size=CHUNK,
    )
    whole = leaf.whole.detach()
    wanted = whole.topk(K).values
    return Claim([values, whole.gather(-1, ids)], [wanted, wanted], [0.0, 0.0])


def gather_logits(of: Inputs) -> Claim:
    leaf = of.leaf()
    place = of.place
    result = model_utils.gather_logits_at_global_indices(
        leaf.own,
        of.ids,
        place.tp_group,
        place.cp_group,
        vocab_start_index=place.start,
        vocab_end_index=place.end,
    )
    wanted = leaf.whole.gather(-1, of.ids)
    return Claim([result], [wanted], [0.0], [leaf], lambda upstream: [0.0], place.cp)


def own_tokens(of: Inputs) -> Claim:
    place = of.place
    result = model_utils._get_tokens_on_this_cp_rank(of.logits, place.cp_rank, place.cp)
    return Claim([result[..., place.start : place.end]], [place.cut(of.logits.double())], [0.0])


def _gathered(of: Inputs, gather: Callable[[Tensor], Tensor]) -> Claim:
    leaf = of.leaf()
    return Claim(
        [gather(leaf.own)], [leaf.whole + 0], [0.0], [leaf], lambda upstream: [0.0], of.place.cp
    )


def gather_sequence(of: Inputs) -> Claim:
    return _gathered(
        of, lambda own: model_utils.allgather_cp_sharded_tensor(own, of.place.cp_group)
    )


def gather_sequence_apply(of: Inputs) -> Claim:
    return _gathered(of, lambda own: model_utils.AllGatherCPTensor.apply(own, of.place.cp_group))


def to_rows(of: Inputs) -> Claim:
    own = of.leaf().own.detach().flatten(0, 1)
    result = model_utils.all_to_all_vp2sq(own, of.place.tp_group)
    wanted = of.logits.double().flatten(0, 1).chunk(of.place.tp)[of.place.tp_rank]
    return Claim([result], [wanted], [0.0])


def to_columns(of: Inputs) -> Claim:
    rows = of.logits.flatten(0, 1).chunk(of.place.tp)[of.place.tp_rank].contiguous()
    result = model_utils.all_to_all_sq2vp(rows, of.place.tp_group)
    return Claim([result], [of.place.cut(of.logits.double()).flatten(0, 1)], [0.0])


def from_hidden(of: Inputs) -> Claim:
    """From hidden states [S/TP, B, H] and the rank's rows of the head, as Megatron holds them."""
    states, weight = _head(of)
    place = of.place
    result = model_utils.from_parallel_hidden_states_to_logprobs(
        states.own, weight.own, None, False, of.target, *place.span, place.tp_group, False, None, CHUNK
    )  # fmt: skip
    return _scored_states(of, states, weight, result, of.next_target, 1)


def hidden_apply(of: Inputs) -> Claim:
    states, weight = _head(of)
    result = model_utils.ChunkedDistributedHiddenStatesToLogprobs.apply(
        states.own, of.target, weight.own, *of.place.span, CHUNK, of.place.tp_group
    )
    return _scored_states(of, states, weight, result, of.target, 0)


def _head(of: Inputs) -> tuple[Leaf, Leaf]:
    place = of.place
    whole_states = of.hidden.transpose(0, 1).contiguous()
    take_states = lambda x: x.chunk(place.tp)[place.tp_rank]  # noqa: E731
    take_rows = lambda x: x[place.start : place.end]  # noqa: E731
    leaves = []
    for whole, take in ((whole_states, take_states), (of.weight, take_rows)):
        leaves.append(
            Leaf(take(whole).clone().requires_grad_(), whole.double().requires_grad_(), take)
        )
    return leaves[0], leaves[1]


def _scored_states(
    of: Inputs, states: Leaf, weight: Leaf, result: Tensor, ids: Tensor, dropped: int
) -> Claim:
    """log p of ids [B, S] from states [S, B, H]; the last positions may be dropped."""
    length = ids.shape[1] - dropped
    logits = (states.whole @ weight.whole.t()).transpose(0, 1)
    wanted = logits.log_softmax(-1).gather(-1, ids[..., None])[:, :length, 0]
    flat_states = states.whole.detach().transpose(0, 1).flatten(0, 1)
    head = weight.whole.detach()
    product = of_products(flat_states, head).view(*ids.shape, 1)
    if of.dtype == torch.bfloat16:  # the product is rounded to bf16, in any library
        product = product + U_BF16 * logits.detach().abs().amax(-1, keepdim=True)
    rows = Rows(logits.detach(), product)

    def gradient_bounds(upstream: Sequence[Tensor]) -> list[Tensor]:
        sent = F.pad(upstream[0], (0, dropped))[..., None]
        error = rows.of_picked_gradient(sent, ids[..., None]).flatten(0, 1)
        of_logits = -rows.logits.softmax(-1) * sent
        of_logits = of_logits.scatter_add(-1, ids[..., None], sent).flatten(0, 1)
        if of.dtype == torch.bfloat16:
            error = error + U_BF16 * of_logits.abs()
        of_states = of_sum(of_logits, head, error).view(*ids.shape, -1).transpose(0, 1)
        of_weight = of_sum(of_logits.t(), flat_states, error.t())
        return [of_states, of_weight]

    bound = rows.of_picked()[:, :length, 0]
    return Claim([result], [wanted], [bound], [states, weight], gradient_bounds)
