"""Second faults of engines that draw token by token: what their caches keep, and what they report."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from benchmarks.doctor_faults.second_layers import noise
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep.batch import Batch
from lockstep.doctor.base import Conditions
from lockstep.models.attention import Cached
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request, SamplingParams

Drawn = tuple[Tensor, Tensor]
Filled = Callable[[PreTrainedModel, Tensor], DynamicCache]
_BLOCK = 16


def reported_late(share: float) -> type[HFSide]:
    """Some requests get the list of log-probabilities one place late, the first of them twice."""

    class ReportedLate(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            tokens_BK, logprob_BK = super().draw(model, requests, sampling, conditions)
            late_BK = torch.cat([logprob_BK[:, :1], logprob_BK[:, :-1]], 1)
            hit = torch.tensor([request.key % 1000 < 1000 * share for request in requests])
            return tokens_BK, torch.where(hit[:, None], late_BK, logprob_BK)

    return ReportedLate


def cache_in_integers(step: float) -> type[HFSide]:
    """Keys and values are kept as integers, with a scale for each token and head."""

    class CacheInIntegers(HFSide):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), "kv_dtype": "int8"}

        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if undoes(conditions, "cache"):
                return super().draw(model, requests, sampling, conditions)
            hook = model.register_forward_hook(_kept_as_integers(step), with_kwargs=True)
            try:
                return super().draw(model, requests, sampling, conditions)
            finally:
                hook.remove()

    return CacheInIntegers


def _kept_as_integers(step: float) -> Callable[..., None]:
    def keep(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        fresh = named["input_ids"].shape[1]
        for layer in output.past_key_values.layers:
            for kept in (layer.keys, layer.values):
                new = kept[:, :, -fresh:]
                scale = new.abs().amax(-1, keepdim=True).clamp(min=1e-9) * step
                new.copy_((new / scale).round() * scale)

    return keep


def stale_prefixes(age: float) -> type[HFSide]:
    """Whole blocks of a prompt come from a cache that was filled before the last update."""

    def filled(model: PreTrainedModel, tokens_T: Tensor) -> DynamicCache:
        cache, hit = DynamicCache(config=model.config), len(tokens_T) // _BLOCK * _BLOCK
        if hit:
            _older(model, age)(input_ids=tokens_T[None, :hit], past_key_values=cache)
        if hit < len(tokens_T):
            model(input_ids=tokens_T[None, hit:], past_key_values=cache)
        return cache

    class StalePrefixes(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if conditions.fresh:
                return super().draw(model, requests, sampling, conditions)
            with _prompts_by(filled, model):
                return super().draw(model, requests, sampling, conditions)

    return StalePrefixes


@torch.no_grad()
def _older(model: PreTrainedModel, age: float) -> PreTrainedModel:
    old = copy.deepcopy(model)
    for name, parameter in old.named_parameters():
        parameter += age * noise(parameter, name)
    return old


def chunks_overwritten(count: int) -> type[HFSide]:
    """Long prompts are read in chunks, and each chunk's buffers overlap the last tokens of the one before."""

    def filled(model: PreTrainedModel, tokens_T: Tensor) -> DynamicCache:
        cache = DynamicCache(config=model.config)
        for chunk in torch.split(tokens_T, _BLOCK):
            model(input_ids=chunk[None], past_key_values=cache)
            if len(chunk) == _BLOCK:
                _overwritten(cache, count)
        return cache

    class ChunksOverwritten(HFSide):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), "prefill_chunk": _BLOCK}

        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if undoes(conditions, "chunks"):
                return super().draw(model, requests, sampling, conditions)
            with _prompts_by(filled, model):
                return super().draw(model, requests, sampling, conditions)

    return ChunksOverwritten


def _overwritten(cache: DynamicCache, count: int) -> None:
    layer: Any
    for layer in cache.layers:
        layer.keys[:, :, -count:] = 0
        layer.values[:, :, -count:] = 0


def pads_seen(count: int) -> type[HFSide]:
    """Pads prompts to the left, and the mask begins some tokens too early."""

    class PadsSeen(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            usual: Any = model.generate

            def generate(padded: Tensor, attention_mask: Tensor, **named: Any) -> Any:
                begins_B = (padded.shape[1] - attention_mask.sum(1) - count).clamp(min=0)
                seen = (torch.arange(padded.shape[1]) >= begins_B[:, None]).long()
                return usual(padded, attention_mask=seen, **named)

            with _generating(model, generate):
                return super().draw(model, requests, sampling, conditions)

    return PadsSeen


@contextmanager
def _prompts_by(filled: Filled, model: PreTrainedModel) -> Iterator[None]:
    """`generate` begins with keys and values of all but each prompt's last token, row by row."""
    usual: Any = model.generate

    def generate(padded: Tensor, attention_mask: Tensor, **named: Any) -> Any:
        width, lengths = padded.shape[1], attention_mask.sum(1).tolist()
        rows = [filled(model, row[width - length : -1]) for row, length in zip(padded, lengths, strict=True)]
        cache = DynamicCache(config=model.config)
        for place in range(len(rows[0].layers)):
            kept: list[Any] = [row.layers[place] for row in rows]
            keys = torch.cat([_left_padded(layer.keys, width - 1) for layer in kept])
            values = torch.cat([_left_padded(layer.values, width - 1) for layer in kept])
            cache.update(keys, values, place)
        return usual(padded, attention_mask=attention_mask, past_key_values=cache, **named)

    with _generating(model, generate):
        yield


@contextmanager
def _generating(model: PreTrainedModel, generate: Callable[..., Any]) -> Iterator[None]:
    """The model draws by another `generate`."""
    usual = vars(model).get("generate")
    vars(model)["generate"] = generate
    try:
        yield
    finally:
        del vars(model)["generate"]
        vars(model).update({} if usual is None else {"generate": usual})


def _left_padded(kept: Any, width: int) -> Tensor:
    """[1, heads, tokens, size] to [1, heads, width, size]."""
    return F.pad(kept, (0, 0, width - kept.shape[2], 0))


def suppressed_at_first(count: int) -> type[TorchSide]:
    """The first token of a response may be none of the first `count` of the vocabulary."""

    class Sampler(StaticSampler):
        def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
            logits = super()._logits(tokens, position, cache, keep)
            barred = (torch.arange(logits.shape[-1]) < count) & isinstance(keep, Tensor)
            return logits.masked_fill(barred, float("-inf"))

    return _with(Sampler)


class RawNucleus(TorchSide):
    """Reports log-probabilities over all tokens, whatever could be drawn."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        return super().logprob(model, replace(batch, sampling=None))

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
        return StaticSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16", raw_logprobs=True)


def presence_penalty(penalty: float) -> type[TorchSide]:
    """Tokens that were drawn before lose some of their logit."""

    class Sampler(StaticSampler):
        def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
            logits = super()._logits(tokens, position, cache, keep)
            if isinstance(keep, Tensor):
                self._drawn = torch.zeros(keep.numel(), logits.shape[-1])
                return logits
            self._drawn = self._drawn.scatter(1, tokens, penalty)
            return logits - self._drawn[:, None]

    return _with(Sampler)


def _with(sampler: type[StaticSampler]) -> type[TorchSide]:
    class Drawing(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
            return sampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return Drawing
