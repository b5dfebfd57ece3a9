"""A probe of this machine: whether its products sum a row alike in any batch, at the shapes of a model."""

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

from lockstep.config import LoRA
from lockstep.models.exact.attention import BLOCK, KEYS, Blockwise
from lockstep.models.exact.experts import EXPERTS, ROUTERS
from lockstep.models.exact.linear import ROWS, linear
from lockstep.models.folder import head_size, skeleton
from lockstep.models.lora import adapt
from lockstep_logprobs.softmax import TILE_COLUMNS, column_tiles

_MOST_ROWS = 264


@torch.no_grad()
def probe(config: PreTrainedConfig, bf16: bool, adapters: LoRA | None = None) -> str | None:
    """Says which product of a model is not exact on this machine, on one thread or all; None: all are exact."""
    dtype = torch.bfloat16 if bf16 else torch.float32
    lm = skeleton(config, config.name_or_path or config.model_type)
    if adapters is not None:
        with torch.device("meta"):
            adapt(lm, adapters)
    modules = [module for module in lm.modules() if module is not lm.get_output_embeddings()]
    for product in dict.fromkeys(chain.from_iterable(_products(module, dtype) for module in modules)):
        if not _linear_is_exact(product):
            return f"a product of {product} is not the same in any batch on this machine"
    text = config.get_text_config()
    if not _head_is_exact(text.hidden_size, text.vocab_size, dtype):
        return (
            f"the head's products, {text.hidden_size} by {text.vocab_size}, are not the same by tiles on this machine"
        )
    heads, groups = text.num_attention_heads, text.num_key_value_heads or text.num_attention_heads
    if not _attention_is_exact(heads, groups, head_size(text)):
        return "products of attention depend on their neighbors on this machine"
    return None


@dataclass(frozen=True)
class _Product:
    """A linear map of a model, from numbers to columns; turned: its weight lies in memory the other way round."""

    size: int
    columns: int
    dtype: torch.dtype
    turned: bool = False

    def __str__(self) -> str:
        return f"{self.size} by {self.columns} in {self.dtype}"


def _products(module: Any, dtype: torch.dtype) -> list[_Product]:
    """The linear maps of a module of a model."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear) or kind in ROUTERS:
        columns, size = module.weight.shape
        return [_Product(size, columns, dtype)]
    if kind not in EXPERTS:
        return []
    weights, turned = (module.gate_up_proj[0], module.down_proj[0]), bool(module.is_transposed)
    shapes = [(w if turned else w.mT).shape for w in weights]
    return [_Product(size, columns, torch.float32, turned) for size, columns in shapes]  # in the type of their weights


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Computes with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _linear_is_exact(product: _Product) -> bool:
    x, weight = (_random(n, product.size, dtype=product.dtype) for n in (_MOST_ROWS, product.columns))
    weight = weight.mT.contiguous().mT if product.turned else weight
    with use_threads(1):
        few = torch.cat([linear(part, weight) for part in x.split(ROWS)])
    sizes = (1, 5, 9, 17, 65, _MOST_ROWS)
    return all(torch.equal(linear(x[:rows], weight), few[:rows]) for rows in sizes)


def _head_is_exact(size: int, vocabulary: int, dtype: torch.dtype) -> bool:
    columns = min(vocabulary, TILE_COLUMNS + vocabulary % TILE_COLUMNS)  # a tile, and the last
    x, weight = _random(ROWS, size, dtype=dtype), _random(columns, size, dtype=dtype)
    tiles = [weight[tile] for tile in column_tiles(columns, row_invariant=True)]
    return torch.equal(linear(x, weight), torch.cat([linear(x, tile) for tile in tiles], 1))


def _attention_is_exact(heads: int, groups: int, size: int) -> bool:
    kernel, length = Blockwise(), BLOCK + 3 * KEYS
    q, k, v = (_random(3, number, length, size) for number in (heads, groups, groups))
    whole = kernel.causal(q, k, v, size**-0.5, None).unflatten(0, (3, length))
    with use_threads(1):
        for at in (0, KEYS, length - 1):
            width = at + 1 + -(at + 1) % KEYS
            keys, values = (F.pad(x[:1, :, : at + 1], (0, 0, 0, width - at - 1)) for x in (k, v))
            mask = kernel.mask((torch.arange(width) <= at)[None])
            new = kernel.newest(q[:1, :, at], keys, values, mask, size**-0.5)
            if not torch.equal(new[0], whole[0, at]):
                return False
    return True
