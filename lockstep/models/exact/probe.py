"""A probe of this machine: whether its products give a row the same bits in any batch, at the shapes of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from lockstep.config import DType, LoRA
from lockstep.models.exact.attention import BLOCK, KEYS, Blockwise
from lockstep.models.exact.experts import EXPERTS, ROUTERS
from lockstep.models.exact.linear import linear
from lockstep.models.exact.verdicts import recall
from lockstep.models.folder import head_size, skeleton
from lockstep.models.lora import adapt
from lockstep.models.precision import TORCH_TYPES
from lockstep_logprobs.hidden import ROWS
from lockstep_logprobs.softmax import TILE_COLUMNS, column_tiles

_SIZES = (1, 5, 9, 17, 65, 264)
"""Rows of the products that are tried."""

_DRAWN = 256
"""Columns of a weight that are drawn; the others repeat them, since a kernel is not chosen by values."""


def probe(config: PreTrainedConfig, dtype: DType, adapters: LoRA | None = None) -> str | None:
    """Says which product of a model is not exact on this machine, on one thread or all; None: all are exact."""
    for product in _products(config, TORCH_TYPES[dtype], adapters):
        if not recall(repr(product), product.is_exact):
            return f"{product} on this machine"
    return None


def _products(
    config: PreTrainedConfig, dtype: torch.dtype, adapters: LoRA | None
) -> Iterator[_Map | _Head | _Attention]:
    """Every product of a model, each shape once."""
    lm = skeleton(config, config.name_or_path or config.model_type)
    if adapters is not None:
        with torch.device("meta"):
            adapt(lm, adapters)
    modules = [module for module in lm.modules() if module is not lm.get_output_embeddings()]
    yield from dict.fromkeys(chain.from_iterable(_maps(module, dtype) for module in modules))
    text = config.get_text_config()
    yield _Head(text.hidden_size, text.vocab_size, dtype)
    heads, groups = text.num_attention_heads, text.num_key_value_heads or text.num_attention_heads
    yield _Attention(heads, groups, head_size(text))


def _maps(module: Any, dtype: torch.dtype) -> list[_Map]:
    """The linear maps of a module of a model."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear) or kind in ROUTERS:
        columns, size = module.weight.shape
        return [_Map(size, columns, dtype)]
    if kind not in EXPERTS:
        return []
    weights, turned = (module.gate_up_proj[0], module.down_proj[0]), bool(module.is_transposed)
    shapes = [(w if turned else w.mT).shape for w in weights]
    return [_Map(size, columns, torch.float32, turned) for size, columns in shapes]  # in the type of their weights


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Computes with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _draw_cancelling(rows: int, columns: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Draws factors [rows, size] and [columns, size] whose products cancel: the rounding that is left tells the order.

    With other numbers, bf16 rounds the difference away in all but 1 element of some 40,000.
    """
    half, draw = -(-size // 2), torch.Generator().manual_seed(rows + columns + size)
    x, weight = (
        torch.randn(n, half, generator=draw) * torch.randint(-6, 7, (n, half), generator=draw).exp2()
        for n in (rows, columns)
    )
    order = torch.randperm(2 * half, generator=draw)[:size]
    return torch.cat([x, x], 1)[:, order].to(dtype), torch.cat([weight, -weight], 1)[:, order].to(dtype)


@dataclass(frozen=True)
class _Map:
    """A linear map from `size` to `columns`; turned: its weight is transposed in memory."""

    size: int
    columns: int
    dtype: torch.dtype
    turned: bool = False

    def __str__(self) -> str:
        return f"a product of {self.size} by {self.columns} in {self.dtype} is not the same in any batch"

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Tries batches that repeat a few rows, on one thread and on all, against each of them alone."""
        repeats, times = -(-self.columns // _DRAWN), -(-_SIZES[-1] // ROWS)
        x, weight = _draw_cancelling(ROWS, min(self.columns, _DRAWN), self.size, self.dtype)
        weight = weight.repeat(repeats, 1)[: self.columns]
        weight = weight.mT.contiguous().mT if self.turned else weight
        with use_threads(1):
            few = torch.cat([linear(row, weight) for row in x.split(1)]).repeat(times, 1)
        x = x.repeat(times, 1)
        for threads in {1, torch.get_num_threads()}:
            with use_threads(threads):
                if not all(torch.equal(linear(x[:rows], weight), few[:rows]) for rows in _SIZES):
                    return False
        return True


@dataclass(frozen=True)
class _Head:
    """The product of a vocabulary head, which scoring computes tile by tile."""

    size: int
    vocabulary: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"the head's product, {self.size} by {self.vocabulary}, is not the same by tiles"

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Tries the first tile and the last."""
        columns = min(self.vocabulary, TILE_COLUMNS + self.vocabulary % TILE_COLUMNS)
        x, weight = _draw_cancelling(ROWS, columns, self.size, self.dtype)
        tiles = [weight[tile] for tile in column_tiles(columns, row_invariant=True)]
        return torch.equal(linear(x, weight), torch.cat([linear(x, tile) for tile in tiles], 1))


@dataclass(frozen=True)
class _Attention:
    """The products of attention with so many heads of queries and of keys, of a size."""

    heads: int
    groups: int
    size: int

    def __str__(self) -> str:
        return "attention depends on its neighbors"

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Tries some queries alone, as while decoding, and among all."""
        kernel, length = Blockwise(), BLOCK + 3 * KEYS
        q, k, v = (_random(3, number, length, self.size) for number in (self.heads, self.groups, self.groups))
        whole = kernel.causal(q, k, v, self.size**-0.5, None).unflatten(0, (3, length))
        with use_threads(1):
            for at in (0, KEYS, length - 1):
                width = at + 1 + -(at + 1) % KEYS
                keys, values = (F.pad(x[:1, :, : at + 1], (0, 0, 0, width - at - 1)) for x in (k, v))
                mask = kernel.mask((torch.arange(width) <= at)[None])
                new = kernel.newest(q[:1, :, at], keys, values, mask, self.size**-0.5)
                if not torch.equal(new[0], whole[0, at]):
                    return False
        return True
