"""Runs a function of logits on shards, on every rank, and puts the pieces together again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dense import packed_zigzag, zigzag
from ranks import Collectives, Fetches, HostWaits, Layout, Ranks
from torch import Tensor

VALUE = {"atol": 5e-6, "rtol": 2e-6}
"""fp32 rounding: a log-probability is the difference of numbers up to about 16, whose last place is
1e-6.
"""
GRADIENT = {"atol": 2e-6, "rtol": 5e-6}
"""Gradients are probabilities times upstream gradients of about 1, and inherit the relative error
of the former.
"""
PADDING_LOGIT = 30.0
"""In columns that are no part of the vocabulary: whoever counts them in gets everything wrong."""


@dataclass(frozen=True)
class Cut:
    """How logits [B, S, V] are divided over tensor-parallel × context-parallel ranks.

    Attributes:
        bounds: First token of each vocabulary shard, and V.
        cp: Context-parallel ranks; each holds its zig-zag share of S.
        padding: Columns of each local tensor that follow those of the vocabulary and are no part of
            it.
        cu_seqlens: Where the sequences of a packed row begin, and its end; None for rows that are
            one sequence each.
    """

    bounds: tuple[int, ...]
    cp: int = 1
    padding: int = 0
    cu_seqlens: tuple[int, ...] | None = None

    @property
    def tp(self) -> int:
        return len(self.bounds) - 1

    def positions(self, length: int, rank: int) -> list[int]:
        if self.cp == 1:
            return list(range(length))
        if self.cu_seqlens is not None:
            return packed_zigzag(self.cu_seqlens, self.cp, rank)
        return zigzag(length, self.cp, rank)

    def local(self, logits_BSV: Tensor, tp_rank: int, cp_rank: int) -> Tensor:
        start, end = self.bounds[tp_rank : tp_rank + 2]
        share = logits_BSV[:, self.positions(logits_BSV.shape[1], cp_rank), start:end]
        return torch.cat(
            [share, share.new_full((*share.shape[:2], self.padding), PADDING_LOGIT)], -1
        )

    def whole(self, pieces: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """The inverse of `local`, from the pieces by rank; columns of padding hold zeros or nothing
        is whole.
        """
        result = torch.full(tuple(shape), torch.nan)
        for rank, piece in enumerate(pieces):
            start, end = self.bounds[rank % self.tp : rank % self.tp + 2]
            rows = torch.tensor(self.positions(shape[1], rank // self.tp), dtype=torch.long)
            result[:, rows, start:end] = piece[..., : end - start].float()
            assert not piece[..., end - start :].any(), (
                "the gradient reaches columns that only fill the shard"
            )
        return result


def even(vocabulary: int, tp: int) -> tuple[int, ...]:
    return tuple(range(0, vocabulary + 1, vocabulary // tp))


@dataclass(frozen=True)
class Place:
    """Where a rank's call stands: what functions on shards are told besides the logits."""

    layout: Layout
    start: int
    end: int

    @property
    def bounds_and_group(self) -> tuple[int, int, Any]:
        return self.start, self.end, self.layout.tp_group


@dataclass(frozen=True)
class Outcome:
    """What one rank saw of a call: results, the gradient of its logits, and what the call did."""

    results: list[Tensor]
    gradient: Tensor
    forward: Counter[str]
    backward: Counter[str]
    waits: list[str]


def on_rank(
    layout: Layout,
    function: Callable[..., Any],
    cut: Cut,
    logits: Tensor,
    args: tuple[Any, ...],
    upstream: Any,
) -> Outcome:
    """Calls `function(local logits, place, *args)`; backward from its results with the `upstream`
    gradients.
    """
    local = cut.local(logits, layout.tp_rank, layout.cp_rank).requires_grad_()
    place = Place(layout, *cut.bounds[layout.tp_rank : layout.tp_rank + 2])
    with Collectives() as forward, HostWaits() as waits, Fetches() as fetches:
        found = function(local, place, *args)
    results = [
        result for result in (found if isinstance(found, tuple) else (found,)) if result is not None
    ]
    sources = [
        (result, given.clone())
        for result, given in zip(results, upstream, strict=True)
        if given is not None
    ]
    with Collectives() as backward, waits, fetches:
        torch.autograd.backward([source for source, _ in sources], [given for _, given in sources])
    assert local.grad is not None, "no gradient reaches the logits"
    detached = [result.detach() for result in results]
    return Outcome(
        detached, local.grad, forward.counts, backward.counts, waits.found + fetches.found
    )


@dataclass(frozen=True)
class Together:
    """The outcome of all ranks: results, equal on each; the whole gradient; counts of rank 0."""

    results: list[Tensor]
    gradient: Tensor
    gradient_dtype: torch.dtype
    forward: Counter[str]
    backward: Counter[str]
    waits: list[str]

    @property
    def result(self) -> Tensor:
        (result,) = self.results
        return result


def run(
    ranks: Ranks,
    function: Callable[..., Any],
    cut: Cut,
    logits: Tensor,
    *args: object,
    upstream: Sequence[Any],
) -> Together:
    """Runs `function` on the shards of `logits` that `cut` makes.

    Args:
        ranks: The pool.
        function: Of local logits, `ParameterSlice` and `args`; it lies at the top of a module.
        cut: How the logits are divided.
        logits: Whole, [B, S, V].
        args: Passed on, the same on each rank.
        upstream: The gradient of each result, None where a result has none.
    """
    outcomes = ranks.run(on_rank, function, cut, logits, args, list(upstream), tp=cut.tp, cp=cut.cp)
    first = outcomes[0]
    for other in outcomes[1:]:
        for mine, theirs in zip(first.results, other.results, strict=True):
            # Each rank adds the same numbers in the same order, or the ranks drift apart.
            assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0)), "ranks disagree"
    gradient = cut.whole([outcome.gradient for outcome in outcomes], logits.shape)
    return Together(
        first.results, gradient, first.gradient.dtype, first.forward, first.backward, first.waits
    )


def dense_of(
    reference: Callable[..., Any], logits: Tensor, *args: object, upstream: Sequence[Any]
) -> tuple[list[Tensor], Tensor]:
    """Results and gradient of `reference(float64 logits, *args)`."""
    leaf = logits.double().requires_grad_()
    found = reference(leaf, *args)
    results = found if isinstance(found, tuple) else (found,)
    sources = [
        (result, given.double())
        for result, given in zip(results, upstream, strict=True)
        if given is not None
    ]
    torch.autograd.backward([source for source, _ in sources], [given for _, given in sources])
    assert leaf.grad is not None
    return [result.detach() for result in results], leaf.grad


def close(
    actual: Tensor, expected: Tensor, *, atol: float = VALUE["atol"], rtol: float = VALUE["rtol"]
) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), atol=atol, rtol=rtol)


def random(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_tokens(*shape: int, vocabulary: int, seed: int = 1) -> Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))
