"""One attention function for every `transformers` model; a layout says which tokens see which.

Models call it with `layout=…`, an object that is handed down from the forward call. `Packed` is for scoring and
training: sequences laid end to end, each blind to its neighbours. `Cached` is for generating: one new token per row,
with the keys and values of the tokens before it. So training and sampling run the same modules with the same positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

from lockstep.batch import Batch

NAME = "lockstep"


class Layout(Protocol):
    """Which tokens see which, and where keys and values are kept."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention over heads-first tensors [rows, heads, tokens, size]. Returns [rows, tokens, heads, size]."""
        ...


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **other: object,
) -> tuple[Tensor, None]:
    """Registered with `transformers` as "lockstep". Never drops out: a policy must score what it sampled.

    Raises:
        ValueError: If the model asks for something that is not built here, such as soft-capped scores.
    """
    if layout is None:
        raise ValueError(
            f"{type(module).__name__} hands no keyword arguments to its attention; such models do not run here"
        )
    for name in ("softcap", "s_aux"):
        if other.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} needs '{name}' in its attention, which Lockstep does not have yet"
            )
    return layout.attend(int(module.layer_idx), query, key, value, scaling, sliding_window), None  # type: ignore[arg-type]


AttentionInterface.register(NAME, attention)


@dataclass(frozen=True)
class Packed:
    """Sequences end to end in one row of N tokens; attention alone sees them as a grid of B × T, right-padded.

    Padding lies to the right, so causality already hides it, and only the attention product pays for it.

    Attributes:
        to_grid: For each cell of the grid its flat token (any token where the cell is padding), int64 [B·T].
        from_grid: For each token its cell, int64 [N].
        rows: B.
    """

    to_grid: Tensor
    from_grid: Tensor
    rows: int

    @classmethod
    def of(cls, batch: Batch) -> Packed:
        width = int(batch.lengths.max())
        starts = batch.starts.to(batch.tokens.device)[:, None]
        last = starts + batch.lengths.to(batch.tokens.device)[:, None] - 1
        cells = torch.minimum(starts + torch.arange(width, device=batch.tokens.device), last)
        return cls(cells.reshape(-1), batch.row * width + batch.position, len(batch))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        q, k, v = (self._grid(x) for x in (query, key, value))
        mask = _window_mask(q.shape[2], window, q.device)
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.from_grid)[None]

    def _grid(self, x: Tensor) -> Tensor:
        """[1, heads, N, size] to [B, heads, T, size]."""
        flat = x[0].transpose(0, 1).index_select(0, self.to_grid)
        return flat.unflatten(0, (self.rows, -1)).transpose(1, 2)


def _window_mask(width: int, window: int | None, device: torch.device) -> Tensor | None:
    """Causal mask of sliding-window layers, bool [T, T]; None where the window holds the whole sequence."""
    if window is None or window >= width:
        return None
    ones = torch.ones(width, width, dtype=torch.bool, device=device)
    return ones.tril().triu(1 - window)


class Cached:
    """Keys and values of growing rows: filled by a packed pass over the prompts, then one token per row and pass.

    Attributes:
        filled: Tokens whose keys and values are in the cache, int64 [B].
    """

    def __init__(self, prompts: Batch, capacity: int) -> None:
        self._packed = Packed.of(prompts)
        self._row, self._position = prompts.row, prompts.position
        self._rows, self._capacity = len(prompts), capacity
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._filling = True
        self.filled = prompts.lengths.to(prompts.tokens.device)
        self._width = int(prompts.lengths.max())

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        if self._filling:
            self._store(layer, key, value)
            return self._packed.attend(layer, query, key, value, scaling, window)
        rows = self._all_rows
        self._keys[layer][rows, :, self.filled] = key[:, :, 0]
        self._values[layer][rows, :, self.filled] = value[:, :, 0]
        k, v = self._keys[layer][:, :, : self._width], self._values[layer][:, :, : self._width]
        mask = self._visible if window is None else self._visible & self._inside(window)
        out = F.scaled_dot_product_attention(query, k, v, mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2)

    def next_token(self) -> None:
        """Makes room for one more token per row, at position `filled`; call it before each decoding pass."""
        if self._filling:
            self._filling = False
        else:
            self.filled = self.filled + 1
        self._width += 1
        columns = torch.arange(self._width, device=self.filled.device)
        self._visible = (columns[None, :] <= self.filled[:, None])[:, None, None, :]
        self._all_rows = torch.arange(self.filled.numel(), device=self.filled.device)

    def keep(self, rows: Tensor) -> None:
        """Forgets all rows but `rows`, int64 [B']; call it between passes."""
        self._keys = {layer: cache[rows] for layer, cache in self._keys.items()}
        self._values = {layer: cache[rows] for layer, cache in self._values.items()}
        self.filled = self.filled[rows]

    def _store(self, layer: int, key: Tensor, value: Tensor) -> None:
        for caches, x in ((self._keys, key), (self._values, value)):
            caches[layer] = x.new_zeros(self._rows, x.shape[1], self._capacity, x.shape[3])
            caches[layer][self._row, :, self._position] = x[0].transpose(0, 1)

    def _inside(self, window: int) -> Tensor:
        columns = torch.arange(self._width, device=self.filled.device)
        return (columns[None, :] > self.filled[:, None] - window)[:, None, None, :]
