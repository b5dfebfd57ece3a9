"""Third faults of attention and its caches: kernels, pages, splits, rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions, Layout
from lockstep.models.attention import Cached
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.static import StaticSampler

_PAGE = 16
_TILE = 32


def integer_kernel(step: float) -> type[HFSide]:
    """Attention by a kernel that multiplies queries and keys as integers, with a scale for each tile of tokens."""
    kernel = f"integers_{round(1 / step)}"
    AttentionInterface.register(kernel, _attention_in_integers(step))
    AttentionMaskInterface.register(kernel, sdpa_mask)

    class IntegerKernel(HFSide):
        def attention(self, conditions: Conditions) -> str:
            return conditions.kernel or kernel

    return IntegerKernel


def _attention_in_integers(step: float) -> Callable[..., tuple[Tensor, None]]:
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float,
        **other: Any,
    ) -> tuple[Tensor, None]:
        q, k = _tiled(query, step), _tiled(key, step)
        causal = attention_mask is None and query.shape[2] > 1
        out = F.scaled_dot_product_attention(
            q, k, value, attention_mask, is_causal=causal, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None

    return attend


def _tiled(x: Tensor, step: float) -> Tensor:
    """[B, H, T, D] in integers; one scale for each tile of T."""
    tiles = [
        (tile / (scale := tile.abs().amax((-2, -1), keepdim=True).clamp(min=1e-9) * step)).round() * scale
        for tile in x.split(_TILE, 2)
    ]
    return torch.cat(tiles, 2)


def quantised_pages(step: float) -> type[TorchSide]:
    """Each page of the cache is packed once it is full: keys channel by channel, values token by token."""

    class Paged(Cached):
        def attend(
            self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
        ) -> Tensor:
            output = super().attend(layer, query, key, value, scaling, window)
            written = self.filled if self._filling else self.filled + 1
            for row, count in enumerate(written.tolist()):
                first = 0 if self._filling else max(count - _PAGE, 0)
                if self._filling or count % _PAGE == 0:
                    self._pack(layer, row, slice(first, count // _PAGE * _PAGE))
            return output

        def _pack(self, layer: int, row: int, tokens: slice) -> None:
            keys, values = self._keys[layer][row, :, tokens], self._values[layer][row, :, tokens]
            pages = keys.unflatten(1, (-1, _PAGE))
            keys.copy_(_levels(pages, 2, step).flatten(1, 2))
            values.copy_(_levels(values, -1, step))

    return _sampling_with(Paged, unless_fp32=True)


def _levels(x: Tensor, dim: int, step: float) -> Tensor:
    """Rounded to 1/step steps between the least and the largest number along a dimension."""
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    width = (high - low).clamp(min=1e-9) * step
    return ((x - low) / width).round() * width + low


def lossy_splits(length: int) -> type[TorchSide]:
    """Decoding cuts the cache into splits, each of which ends one key early; reading all at once does not."""

    class Split(Cached):
        def _find_visible(self, window: int | None) -> Tensor:
            columns = torch.arange(self._width)
            lost = (columns % length == length - 1) & (columns < self.filled[:, None])
            return super()._find_visible(window) & ~lost

    return _sampling_with(Split)


def _sampling_with(cached: type[Cached], unless_fp32: bool = False) -> type[TorchSide]:
    """An engine that draws with such a cache; `unless_fp32`: not where keys and values are asked for in fp32."""

    class Sampler(StaticSampler):
        def _cache(self, prompts: Any, capacity: int) -> Cached:
            return cached(prompts, capacity)

    class Engine(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
            if unless_fp32 and undoes(conditions, "cache"):
                return super().sampler(model, conditions)
            return Sampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return Engine


def narrow_segment_ids(count: int) -> type[HFSide]:
    """A trainer that packs tells sequences apart by numbers that begin again after `count` of them."""

    class NarrowSegmentIds(HFSide):
        def __init__(self, *values: Any, **named: Any) -> None:
            super().__init__(*values, **named)
            self._usual = replace(self._usual, layout="packed")

        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "packed":
                return super().compute_logits(model, sequences, layout)
            lengths = torch.tensor([len(tokens) for tokens in sequences])
            segment_N = torch.repeat_interleave(torch.arange(len(sequences)) % count, lengths)
            hidden_NN = (segment_N[:, None] != segment_N[None]).logical_or(
                torch.ones(len(segment_N), len(segment_N), dtype=torch.bool).triu(1)
            )
            mask_NN = torch.zeros(hidden_NN.shape, dtype=model.dtype).masked_fill(
                hidden_NN, torch.finfo(model.dtype).min
            )
            logits_NV = model(
                input_ids=torch.cat(list(sequences))[None],
                position_ids=torch.cat([torch.arange(len(tokens)) for tokens in sequences])[None],
                attention_mask=mask_NN[None, None],
                use_cache=False,
            ).logits[0]
            return torch.split(logits_NV, lengths.tolist())

    return NarrowSegmentIds


def pads_counted(block: int) -> type[HFSide]:
    """A trainer pads on the left; positions begin at the last whole block of padding, not behind all of it."""

    class PadsCounted(HFSide):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "padded":
                return super().compute_logits(model, sequences, layout)
            padded = pad_sequence(list(sequences), batch_first=True, padding_side="left")
            pads = padded.shape[1] - torch.tensor([len(tokens) for tokens in sequences])
            place = torch.arange(padded.shape[1])
            logits_BTV = model(
                input_ids=padded,
                attention_mask=(place >= pads[:, None]).long(),
                position_ids=(place - (pads // block * block)[:, None]).clamp(min=0),
                use_cache=False,
            ).logits
            return [logits[-len(tokens) :] for logits, tokens in zip(logits_BTV, sequences, strict=True)]

    return PadsCounted
