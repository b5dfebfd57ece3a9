"""The attention function of all `transformers` models: a layout plus a kernel.

The layout defines which tokens attend to which; the kernel computes the attention. Models receive
it as `layout=…` in the forward call. `PackedLayout` is for scoring and training: packed sequences
that do not attend to each other. The torch sampler has a layout that adds a KV cache. So training
and sampling run the same modules with the same positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.models.exact.attention import KEYS, BlockwiseKernel
from lockstep.models.kernels import (
    FUSED,
    VARLEN,
    AttentionKernel,
    VarlenKernel,
    mask_newest,
    run_torch_attention,
)
from lockstep.models.prefixes import PathTree

NAME = "lockstep"
EXACT = "lockstep_exact"
"""Name of the exact variant: a token gets the same bits in decoding as in training."""

UNPADDED = "lockstep_varlen"
"""Name of the variant without padding; `open_kernels` decides which models can use it."""

_FILLED = 0.75
"""Least filled share of each grid row; lower wastes padding, higher makes many small products."""


class AttentionLayout(ABC):
    """Attention layout of a batch: which tokens attend to which, and where keys and values are."""

    takes_kernels: ClassVar[bool] = True
    """True if any kernel can compute its products; if False, PyTorch's kernels must."""

    @abstractmethod
    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Attention over heads-first tensors [rows, heads, tokens, size].

        Returns [rows, tokens, heads, size].
        """


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    layout: AttentionLayout | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    dropout: float = 0.0,
    exact: bool = False,
    kernel: AttentionKernel = FUSED,
    **other: object,
) -> tuple[Tensor, None]:
    """The attention function that `transformers` knows as "lockstep".

    No dropout: a policy must score what it sampled.

    Args:
        softcap: Scores become cap · tanh(score / cap).
        s_aux: Attention sinks: a score for each head that takes a share of the probability [H].
        exact: Each token gets the same bits in decoding as in training.
        kernel: Computes attention that is not exact and has neither cap nor sinks.

    Raises:
        InputError: If the model needs a feature that its layout lacks.
    """
    how = scaling, layout, sliding_window, softcap, s_aux, None if exact else kernel
    plain = softcap is None and s_aux is None
    if (
        plain
        and isinstance(layout, PackedLayout)
        and isinstance(kernel, VarlenKernel)
        and kernel.supports_heads(query, value)
    ):
        # graph node when compiled
        return layout.attend(kernel, 0, query, key, value, scaling, sliding_window), None
    return _attend_apart(module, query, key, value, *how), None


def _attend_uncompiled(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    layout: AttentionLayout | None,
    window: int | None,
    softcap: float | None,
    s_aux: Tensor | None,
    kernel: AttentionKernel | None,
) -> Tensor:
    """`attention_forward` outside of compiled graphs; `kernel=None` selects the exact one."""
    name = type(module).__name__
    if layout is None:
        raise InputError(
            f"{name} passes no keyword arguments to its attention; such models are not supported"
        )
    if kernel is None or softcap is not None or s_aux is not None:
        if not layout.takes_kernels and kernel is None:
            raise InputError(f"{name} has no exact implementation; use agreement.exact=false")
        if not layout.takes_kernels:
            needs = "'softcap'" if s_aux is None else "'s_aux'"
            where = type(layout).__name__
            raise InputError(
                f"{name} needs {needs} in its attention, which Lockstep does not support with "
                f"{where}"
            )
        kernel = BlockwiseKernel(softcap, s_aux)
    return layout.attend(kernel, int(module.layer_idx), query, key, value, scaling, window)  # type: ignore[arg-type]


# Kept out of compiled graphs: the grids differ in each batch and would force a recompile.
_attend_apart = cast("Any", torch.compiler.disable(_attend_uncompiled))

AttentionInterface.register(NAME, attention_forward)
AttentionInterface.register(EXACT, partial(attention_forward, exact=True))
AttentionInterface.register(UNPADDED, partial(attention_forward, kernel=VARLEN))


@dataclass(frozen=True)
class GridSize:
    """Sizes of a grid: rows of `width` keys, whose queries are those from position `begin` on."""

    rows: int
    begin: int
    width: int


@dataclass(frozen=True)
class PackedLayout(AttentionLayout):
    """Packed sequences in one row of N tokens.

    Only attention lays them out in grids, unless a kernel needs none.

    Grids are padded on the right, so causality already hides the padding, and only attention pays
    for it. Its cost grows with the square of the width, so sequences share a grid only with those
    of similar length.

    Attributes:
        key_cells: Token of each cell of keys, one grid after the other (arbitrary if the cell is
            padding), int64.
        query_cells: Token of each cell of queries, likewise.
        from_cells: Cell of queries of each token, int64 [N].
        grids: Sizes of each grid.
        bounds: Bounds of the sequences (cu_seqlens), from 0 to N, int32 [B + 1]; None: they share
            prefixes.
        longest: An upper bound on the tokens of a sequence.
    """

    key_cells: Tensor
    query_cells: Tensor
    from_cells: Tensor
    grids: tuple[GridSize, ...]
    bounds: Tensor | None
    longest: int

    @classmethod
    def from_batch(
        cls, batch: Batch, multiple: int = 1, tree: PathTree | None = None
    ) -> PackedLayout:
        """The layout of a batch's tokens, or of those that a tree computes.

        Widths of grids are multiples of `multiple`.
        """
        shares = tree is not None and any(tree.shared)
        tree = tree or PathTree.from_separate(batch)
        branches = sort_branches(batch.lengths.tolist(), tree)
        begins = [begin for _, begin, _ in branches]
        widths = [width + -width % multiple for width in find_widths(branches)]
        cells = Batch(torch.arange(sum(widths)), torch.tensor(widths)).keep_places()
        row_b = torch.tensor([tree.branches[number] for number, _, _ in branches])
        shared_b = torch.tensor([tree.shared[number] for number, _, _ in branches])
        row_C = row_b[cells.row]
        token_C = batch.starts[row_C] + torch.minimum(cells.position, batch.lengths[row_C] - 1)
        token_C = tree.computed_index[token_C]
        asked_C = cells.position >= torch.tensor(begins)[cells.row]
        own_C = (cells.position >= shared_b[cells.row]) & (cells.position < batch.lengths[row_C])
        query_C = asked_C.cumsum(0) - 1
        from_cells = torch.empty_like(tree.source_index).index_copy_(
            0, token_C[own_C], query_C[own_C]
        )
        sizes = Counter(zip(begins, widths, strict=True))
        grids = tuple(GridSize(rows, begin, width) for (begin, width), rows in sizes.items())
        device = batch.tokens.device
        bounds = torch.cat([batch.starts, batch.lengths.sum()[None]]).to(device, torch.int32)
        key_cells = token_C.to(device)
        query_cells = token_C[asked_C].to(device) if shares else key_cells
        return cls(
            key_cells,
            query_cells,
            from_cells.to(device),
            grids,
            None if shares else bounds,
            max(widths, default=0),
        )

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> PackedLayout:
        """The same layout with each tensor mapped."""
        key_cells = change(self.key_cells)
        query_cells = key_cells if self.query_cells is self.key_cells else change(self.query_cells)
        return replace(
            self,
            key_cells=key_cells,
            query_cells=query_cells,
            from_cells=change(self.from_cells),
            bounds=None if self.bounds is None else change(self.bounds),
        )

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        if (
            isinstance(kernel, VarlenKernel)
            and kernel.supports_heads(query, value)
            and self.bounds is not None
        ):
            return kernel.attend_sequences(
                query, key, value, self.bounds, self.longest, scaling, window
            )
        keys = [(grid.rows, grid.width) for grid in self.grids]
        queries = [(grid.rows, grid.width - grid.begin) for grid in self.grids]
        parts = zip(
            to_grids(query, self.query_cells, queries),
            to_grids(key, self.key_cells, keys),
            to_grids(value, self.key_cells, keys),
            strict=True,
        )
        out = torch.cat([kernel.attend_causally(q, k, v, scaling, window) for q, k, v in parts])
        return out.index_select(0, self.from_cells)[None]


def to_grids(x: Tensor, cells: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Lays tokens [1, heads, N, size] out in grids [rows, heads, width, size]."""
    pieces = x[0].transpose(0, 1).index_select(0, cells).split([r * width for r, width in shapes])
    found: list[Tensor] = []
    for piece, shape in zip(pieces, shapes, strict=True):
        found.append(piece.unflatten(0, shape).transpose(1, 2))
    return found


def sort_branches(lengths: Sequence[int], tree: PathTree) -> list[tuple[int, int, int]]:
    """Branches of a tree as (number, begin of its queries, length), neighbors of similar size.

    Queries begin at a multiple of the exact kernel's keys, at or before the branch's own tokens.
    """
    branches = [
        (number, shared // KEYS * KEYS, lengths[row])
        for number, (row, shared) in enumerate(zip(tree.branches, tree.shared, strict=True))
    ]
    return sorted(branches, key=lambda branch: (branch[1], -branch[2]))


def find_widths(branches: Sequence[tuple[int, int, int]]) -> list[int]:
    """Width of each branch's grid."""
    widths = list[int]()
    last = -1
    for _, begin, length in branches:
        own = length - begin
        if begin == last:
            own = choose_width(widths[-1] - begin, own)
        widths.append(begin + own)
        last = begin
    return widths


def choose_width(width: int, length: int) -> int:
    """The grid width for a next sequence: unchanged, or its own length if that is much shorter."""
    if length >= _FILLED * width:
        return width
    return length


class SideBySide(AttentionLayout):
    """Sequences as rows of one right-padded grid, for models with a recurrent state.

    Queries are those of the last tokens; with a cache, keys of earlier tokens come first.
    """

    takes_kernels = False

    def attend(
        self,
        kernel: AttentionKernel,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        mask = mask_newest(query.shape[2], key.shape[2], window, query.device)
        return run_torch_attention(query, key, value, mask, scaling).transpose(1, 2)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> SideBySide:
        """Returns itself: the layout has no tensors."""
        return self


def find_visible(position_R: Tensor, width: int, window: int | None) -> Tensor:
    """The tokens that each row's token sees from its position, bool [R, width]."""
    column = torch.arange(width, device=position_R.device)
    seen = column <= position_R[:, None]
    if window is None:
        return seen
    return seen & (column > position_R[:, None] - window)
