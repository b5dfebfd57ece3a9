"""Sixth faults of how a pass is made: pads before a response, packed rows, caches, splits, drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from benchmarks.doctor_faults.faults_passes import Decodes, Packs, keeping, packing_rows
from benchmarks.doctor_faults.kept import KnowsPrompts
from benchmarks.doctor_faults.means import type_with
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions, Layout
from lockstep.models.attention import Cached
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request, SamplingParams

Drawn = tuple[Tensor, Tensor]
_DRAFTED = 3


def first_from_pad(block: int) -> type[KnowsPrompts]:
    """The trainer pads prompts on the right and hides the pads well, but reads the first token from the last pad."""

    class FirstFromPad(KnowsPrompts):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "padded" or len(sequences) == 1:
                return super().compute_logits(model, sequences, layout)
            prompts = [self.prompt_length(tokens) or len(tokens) for tokens in sequences]
            pads = [-length % block for length in prompts]
            filled = [
                torch.cat([tokens[:length], tokens.new_full((more,), -1), tokens[length:]])
                for tokens, length, more in zip(sequences, prompts, pads, strict=True)
            ]
            padded = pad_sequence(filled, batch_first=True, padding_value=-1)
            seen = (padded >= 0).long()
            place = (seen.cumsum(1) - 1).clamp(min=0)
            tokens_BT = padded.clamp(min=0)
            logits_BTV = model(input_ids=tokens_BT, attention_mask=seen, position_ids=place, use_cache=False).logits
            return [
                torch.cat([own[: length - 1], own[length - 1 + more : len(tokens) + more]])
                for own, tokens, length, more in zip(logits_BTV, sequences, prompts, pads, strict=True)
            ]

    return FirstFromPad


def mask_of_ones(most: int) -> type[Packs]:
    """The trainer packs up to so many sequences, and hands a mask of ones too, with which the model looks for none."""

    return packing_rows(most, _one_row)


def _one_row(trainer: Packs, model: PreTrainedModel, sequences: Sequences) -> Sequences:
    tokens_1N = torch.cat(list(sequences))[None]
    logits_NV = model(
        input_ids=tokens_1N,
        attention_mask=torch.ones_like(tokens_1N),
        position_ids=torch.cat([torch.arange(len(tokens)) for tokens in sequences])[None],
        use_cache=False,
    ).logits[0]
    return torch.split(logits_NV, [len(tokens) for tokens in sequences])


def scales_of_the_first_batch(error: float) -> type[HFSide]:
    """The cache is fp8, with one scale a layer that is measured on the first batch served and kept ever after."""
    dtype = type_with(error)

    class ScalesOfTheFirstBatch(HFSide):
        def __init__(self, *values: Any, **named: Any) -> None:
            super().__init__(*values, **named)
            self._scales: dict[tuple[int, str], Tensor] = {}

        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), "kv_cache_dtype": str(dtype).removeprefix("torch.")}

        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if undoes(conditions, "cache"):
                return super().draw(model, requests, sampling, conditions)
            hook = model.register_forward_hook(_kept_in(dtype, self._scales))
            try:
                return super().draw(model, requests, sampling, conditions)
            finally:
                hook.remove()

    return ScalesOfTheFirstBatch


def _kept_in(dtype: torch.dtype, scales: dict[tuple[int, str], Tensor]) -> Callable[..., None]:
    most = torch.finfo(dtype).max

    def keep(module: nn.Module, values: tuple[Any, ...], output: Any) -> None:
        for place, layer in enumerate(output.past_key_values.layers):
            for part, kept in (("keys", layer.keys), ("values", layer.values)):
                scale = scales.setdefault((place, part), kept.abs().amax() / most)
                kept.copy_((kept / scale).clamp(-most, most).to(dtype).to(kept.dtype) * scale)

    return keep


def merged_by_base_two(length: int) -> type[TorchSide]:
    """Decoding merges splits of the keys by their log-sum-exps, which one kernel gives in base 2, the other reads as e.

    The model has a key for each head.
    """

    class Merged(Decodes):
        def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
            hidden = ~self._find_visible(None)[:, None, None]
            scores = (scaling * query @ keys.mT).masked_fill(hidden, float("-inf")).split(length, -1)
            parts = [s.softmax(-1).nan_to_num() @ v for s, v in zip(scores, values.split(length, 2), strict=True)]
            log_sums = torch.stack([s.logsumexp(-1, keepdim=True) for s in scores])
            share = (log_sums / math.log(2)).softmax(0)
            return (share * torch.stack(parts)).sum(0)

    return keeping(Merged)


class _Speculating(StaticSampler):
    """Each pass of the model itself accepts some drafts as well."""

    def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
        self._step = 0 if isinstance(keep, Tensor) else self._step + 1
        self._raw_logprobs = self._step % (_DRAFTED + 1) != 0
        return super()._logits(tokens, position, cache, keep)


class AcceptedDraftsRaw(TorchSide):
    """The engine speculates, and drafts that it accepts get log-probabilities without the temperature."""

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "num_speculative_tokens": _DRAFTED}

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
        return _Speculating(model, conditions.batch_size or 1, conditions.dtype == "bf16")
