"""Held-out faults of how a pass is made: nodes, tiers of a cache, pages, ranks, pads, segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from benchmarks.doctor_faults.faults_passes import Decodes, Packs, keeping, packing_rows
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions, Layout
from lockstep.models.attention import Cached
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request, SamplingParams

Drawn = tuple[Tensor, Tensor]
_BLOCK = 16


def sent_in_integers(size: float) -> type[HFSide]:
    """One node reads prompts, and sends keys and values as integers, with a scale for each head, to that which decodes.

    What the decoding node adds to its cache is exact.
    """

    def sent(module: nn.Module, values: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        if named["input_ids"].shape[1] == 1:
            return
        for layer in output.past_key_values.layers:
            for kept_BHTD in (layer.keys, layer.values):
                scale = kept_BHTD.abs().amax((-2, -1), keepdim=True) * size
                kept_BHTD.copy_((kept_BHTD / scale).round() * scale)

    class SentInIntegers(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if undoes(conditions, "cache"):
                return super().draw(model, requests, sampling, conditions)
            hook = model.register_forward_hook(sent, with_kwargs=True)
            try:
                return super().draw(model, requests, sampling, conditions)
            finally:
                hook.remove()

    return SentInIntegers


_Tier = dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]]
"""Keys and values of a layer for whole blocks that a prompt begins with, [H, T, D] each."""


class _FromHost(Cached):
    """Takes whole blocks from the host's memory, where they have been read before."""

    def __init__(self, prompts: Batch, capacity: int, tier: _Tier) -> None:
        super().__init__(prompts, capacity)
        whole = [tuple(tokens[: (len(tokens) - 1) // _BLOCK * _BLOCK].tolist()) for tokens in prompts.sequences()]
        self._tier, self._beginnings = tier, list(zip(prompts.starts.tolist(), whole, strict=True))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        if self._filling:
            key, value = key.clone(), value.clone()
            for start, beginning in self._beginnings:
                read = slice(start, start + len(beginning))
                fresh = key[0, :, read].clone(), value[0, :, read].clone()
                key[0, :, read], value[0, :, read] = self._tier.setdefault((layer, beginning), fresh)
        return super().attend(layer, query, key, value, scaling, window)


class HostTierKept(TorchSide):
    """A refit drops the prefix cache on the device; blocks that were moved to the host come back from there."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._tiers: dict[tuple[int, str | None], _Tier] = {}

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
        if conditions.fresh:
            self._tiers.clear()
        tier = self._tiers.setdefault((id(model), conditions.dtype), {})

        class Sampler(StaticSampler):
            def _cache(self, prompts: Batch, capacity: int) -> Cached:
                return _FromHost(prompts, capacity, tier)

        return Sampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")


def whole_pages(size: int) -> type[TorchSide]:
    """The decoding kernel reads whole pages of keys, and does not hide the empty slots of the last one."""

    class WholePages(Decodes):
        def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
            keys, values = (F.pad(kept, (0, 0, 0, -kept.shape[2] % size)) for kept in (keys, values))
            read_B = (self.filled // size + 1) * size
            seen = (torch.arange(keys.shape[2]) < read_B[:, None])[:, None, None]
            return F.scaled_dot_product_attention(query, keys, values, seen, scale=scaling, enable_gqa=True)

    return keeping(WholePages)


def one_rank_back(ranks: int) -> type[HFSide]:
    """A sequence lies on ranks in parts, each gets keys from the one before it only, and windows reach further back."""

    class OneRankBack(HFSide):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout == "packed":
                return super().compute_logits(model, sequences, layout)
            padded = pad_sequence(list(sequences), batch_first=True)
            place = torch.arange(padded.shape[1])
            part = -(-padded.shape[1] // ranks)
            causal = place[None] <= place[:, None]
            near = place[None] > place[:, None] - model.config.sliding_window
            sent = place[None] // part >= place[:, None] // part - 1
            masks = {
                "full_attention": _added(causal, model.dtype),
                "sliding_attention": _added(causal & near & sent, model.dtype),
            }
            logits_BTV = model(input_ids=padded, attention_mask=masks, use_cache=False).logits
            return [logits[: len(tokens)] for logits, tokens in zip(logits_BTV, sequences, strict=True)]

    return OneRankBack


def _added(visible_TT: Tensor, dtype: torch.dtype) -> Tensor:
    """Pads lie behind all that sees, so that one mask is right for each row."""
    return torch.zeros(visible_TT.shape, dtype=dtype).masked_fill(~visible_TT, torch.finfo(dtype).min)[None, None]


def positions_with_pads(most: int) -> type[HFSide]:
    """The trainer pads on the left and hands a mask, but no positions, which then begin with the pads.

    Rows of like length go together, so that none has more than so many pads.
    """

    class PositionsWithPads(HFSide):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "padded":
                return super().compute_logits(model, sequences, layout)
            logits: dict[int, Tensor] = {}
            for group in _alike([len(tokens) for tokens in sequences], most):
                rows = [sequences[row] for row in group]
                padded = pad_sequence(rows, batch_first=True, padding_side="left")
                seen = pad_sequence([torch.ones_like(tokens) for tokens in rows], batch_first=True, padding_side="left")
                logits_BTV = model(input_ids=padded, attention_mask=seen, use_cache=False).logits
                logits |= {row: own[-len(sequences[row]) :] for row, own in zip(group, logits_BTV, strict=True)}
            return [logits[row] for row in range(len(sequences))]

    return PositionsWithPads


def _alike(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Rows in groups, the longest first, in each of which lengths differ by no more than `most`."""
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if groups and lengths[groups[-1][0]] - lengths[row] <= most:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def positions_from_segments(most: int) -> type[Packs]:
    """The trainer packs up to so many sequences, numbers them in the mask, and adds the mask up to get positions."""

    def row(trainer: Packs, model: PreTrainedModel, sequences: Sequences) -> Sequences:
        lengths = torch.tensor([len(tokens) for tokens in sequences])
        number_N = torch.repeat_interleave(torch.arange(len(lengths)) + 1, lengths)
        visible_NN = (number_N[:, None] == number_N[None]).tril()
        return trainer.packed(model, sequences, number_N.cumsum(0) - 1, visible_NN)

    return packing_rows(most, row)
