"""The attention function of all `transformers` models: a layout plus a kernel.

The layout says which tokens see which; the kernel computes it. Models receive it as `layout=…` in
the forward call. `PackedLayout` is for scoring and training: packed sequences that do not see each
other. The torch sampler has a layout that adds a KV cache. So training and sampling run the same
modules with the same positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.models.exact.attention import BlockwiseKernel
from lockstep.models.kernels import (
    FUSED,
    VARLEN,
    AttentionKernel,
    VarlenKernel,
    mask_newest,
    run_torch_attention,
)

NAME = "lockstep"
EXACT = "lockstep_exact"
"""Name of the exact variant: a token gets the same bits in decoding as in training."""

UNPADDED = "lockstep_varlen"
"""Name of the variant without padding; `open_kernels` decides which models can use it."""

_FILLED = 0.75
"""Least filled share of each grid row; lower wastes padding, higher makes many small products."""


class AttentionLayout(ABC):
    """Attention layout of a batch: which tokens see which, and where the keys and values are."""

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
        InputError: If the model asks for something that its layout does not compute.
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
class PackedLayout(AttentionLayout):
    """Packed sequences in one row of N tokens.

    Only attention lays them out in grids, unless a kernel needs none.

    Grids are padded on the right, so causality already hides the padding, and only attention pays
    for it. Its cost grows with the square of the width, so sequences share a grid only with those
    of similar length.

    Attributes:
        to_cells: Flat token of each cell, one grid after the other (arbitrary if the cell is
            padding), int64 [C].
        from_cells: Cell of each token, int64 [N].
        shapes: Rows and width of each grid.
        bounds: Bounds of the sequences (cu_seqlens), from 0 to N, int32 [B + 1].
        longest: An upper bound on the tokens of a sequence.
    """

    to_cells: Tensor
    from_cells: Tensor
    shapes: tuple[tuple[int, int], ...]
    bounds: Tensor
    longest: int

    @classmethod
    def from_batch(cls, batch: Batch, multiple: int = 1) -> PackedLayout:
        """The layout of a batch, in grids whose widths are multiples of `multiple`."""
        length_B, order_B = torch.sort(batch.lengths, descending=True, stable=True)
        widths = [
            width + -width % multiple for width in accumulate(length_B.tolist(), choose_width)
        ]
        cells = Batch(torch.arange(sum(widths)), torch.tensor(widths)).keep_places()
        token_C = batch.starts[order_B][cells.row] + torch.minimum(
            cells.position, length_B[cells.row] - 1
        )
        first_B = torch.empty_like(order_B).index_copy_(0, order_B, cells.starts)
        device = batch.tokens.device
        from_cells = first_B.to(device)[batch.row] + batch.position
        shapes = tuple((rows, width) for width, rows in Counter(widths).items())
        bounds = torch.cat([batch.starts, batch.lengths.sum()[None]]).to(device, torch.int32)
        return cls(token_C.to(device), from_cells, shapes, bounds, max(widths, default=0))

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> PackedLayout:
        """The same layout with each tensor mapped."""
        to_cells, from_cells, bounds = (
            change(x) for x in (self.to_cells, self.from_cells, self.bounds)
        )
        return replace(self, to_cells=to_cells, from_cells=from_cells, bounds=bounds)

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
        if isinstance(kernel, VarlenKernel) and kernel.supports_heads(query, value):
            return kernel.attend_sequences(
                query, key, value, self.bounds, self.longest, scaling, window
            )
        sizes = [rows * width for rows, width in self.shapes]

        def cut_grids(x: Tensor) -> list[Tensor]:
            """Splits [1, heads, N, size] into [rows, heads, width, size] for each grid."""
            pieces = x[0].transpose(0, 1).index_select(0, self.to_cells).split(sizes)
            return [
                piece.unflatten(0, shape).transpose(1, 2)
                for piece, shape in zip(pieces, self.shapes, strict=True)
            ]

        grids = zip(cut_grids(query), cut_grids(key), cut_grids(value), strict=True)
        out = torch.cat([kernel.attend_causally(q, k, v, scaling, window) for q, k, v in grids])
        return out.index_select(0, self.from_cells)[None]


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
