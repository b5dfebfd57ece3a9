"""Caches: what they keep of keys, values and states, what they keep too long, and kernels that decode from them."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.loading import refit_after_serving
from benchmarks.doctor_faults.means import E4M3, E5M2, integers, levels, noise, rounded, type_with
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from benchmarks.doctor_faults.surroundings import around, drawn, inverse, mixed, whole
from benchmarks.doctor_faults.ways import Drawn, drawing, exact, generating, keeping, rewriting_cache, with_cache
from lockstep import keyed
from lockstep.batch import Batch
from lockstep.distributed.sampling import draw
from lockstep.doctor.base import Conditions
from lockstep.models.attention import Cached, Packed
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.types import Request, SamplingParams

_BLOCK = _PAGE = 16


def coarse_cache(error: float) -> type[TorchSide]:
    """The engine keeps keys and values in fp8; a prompt's own pass still sees them as they are computed."""
    dtype = type_with(error)

    class CoarseCached(Cached):
        def attend(
            self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
        ) -> Tensor:
            if not self._filling:
                key, value = rounded(key, dtype), rounded(value, dtype)
            return super().attend(layer, query, key, value, scaling, window)

        def _store(self, layer: int, key: Tensor, value: Tensor) -> None:
            super()._store(layer, rounded(key, dtype), rounded(value, dtype))

    return keeping(CoarseCached, exact("cache"))


def quantized_pages(step: float) -> type[TorchSide]:
    """Each page of the cache is packed once it is full: keys channel by channel, values token by token."""

    class Paged(Cached):
        def attend(
            self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
        ) -> Tensor:
            output = super().attend(layer, query, key, value, scaling, window)
            written = self.filled if self._filling else self.filled + 1
            for row, count in enumerate(written.tolist()):
                if self._filling or count % _PAGE == 0:
                    first = 0 if self._filling else max(count - _PAGE, 0)
                    self._pack(layer, row, slice(first, count // _PAGE * _PAGE))
            return output

        def _pack(self, layer: int, row: int, tokens: slice) -> None:
            keys, values = self._keys[layer][row, :, tokens], self._values[layer][row, :, tokens]
            keys.copy_(levels(keys.unflatten(1, (-1, _PAGE)), 2, step).flatten(1, 2))
            values.copy_(levels(values, -1, step))

    return keeping(Paged, exact("cache"))


def cache_in_integers(step: float) -> type[HFSide]:
    """Keys and values are kept as integers, with a scale for each token and head."""

    def change(number: int, layer: Any, fresh: int) -> None:
        for kept in (layer.keys, layer.values):
            kept[:, :, -fresh:] = integers(kept[:, :, -fresh:], step)

    return rewriting_cache(change)


def sent_in_integers(step: float) -> type[HFSide]:
    """One node reads prompts, and sends keys and values as integers, with a scale for each head, to that which decodes.

    What the decoding node adds to its cache is exact.
    """

    def change(number: int, layer: Any, fresh: int) -> None:
        for kept in (layer.keys, layer.values) if fresh > 1 else ():
            kept.copy_(integers(kept, step, -2, -1))

    return rewriting_cache(change)


def coarse_states(step: float) -> type[HFSide]:
    """Between tokens recurrent states are kept as integers, with a scale for each row of a head's state."""

    def change(number: int, layer: Any, fresh: int) -> None:
        for state in vars(layer).get("recurrent_states", {}).values():
            if state is not None:
                state.copy_(integers(state, step))

    return rewriting_cache(change)


def scales_of_the_first_batch(error: float) -> type[HFSide]:
    """The cache is fp8, with one scale a layer that is measured on the first batch served and kept ever after."""
    scales: dict[tuple[int, bool], Tensor] = {}
    dtype, most = type_with(error), torch.finfo(type_with(error)).max

    def change(number: int, layer: Any, fresh: int) -> None:
        for keys, kept in ((True, layer.keys), (False, layer.values)):
            scale = scales.setdefault((number, keys), kept.abs().amax() / most)
            kept.copy_((kept / scale).clamp(-most, most).to(dtype).to(kept.dtype) * scale)

    return rewriting_cache(change)


def stale_prefixes(end: Callable[[int], int]) -> type[TorchSide]:
    """Keeps keys and values of as much of a prompt as a function says of its length, also when weights change."""
    stores: dict[tuple[int, str | None], dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]]] = {}

    class Reusing(Cached):
        def __init__(self, store: dict[Any, Any], prompts: Batch, capacity: int) -> None:
            super().__init__(prompts, capacity)
            begun = [tuple(tokens[: end(len(tokens))].tolist()) for tokens in prompts.sequences()]
            self._store_of, self._begun = store, list(zip(prompts.starts.tolist(), begun, strict=True))

        def attend(
            self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
        ) -> Tensor:
            if self._filling:
                key, value = key.clone(), value.clone()
                for start, begun in self._begun:
                    read = slice(start, start + len(begun))
                    fresh = key[0, :, read].clone(), value[0, :, read].clone()
                    key[0, :, read], value[0, :, read] = self._store_of.setdefault((layer, begun), fresh)
            return super().attend(layer, query, key, value, scaling, window)

    class StalePrefixes(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
            if conditions.fresh:
                stores.clear()
            store = stores.setdefault((id(model), conditions.dtype), {})
            sampler = with_cache(partial(Reusing, store))
            return sampler(model, conditions.batch_size or 1, conditions.dtype or "fp32")

    return StalePrefixes


def _prompts_by(filled: Callable[[PreTrainedModel, Tensor], DynamicCache], unless: Any) -> type[HFSide]:
    """`generate` begins with keys and values of all but each prompt's last token, row by row."""

    def generate(model: PreTrainedModel, usual: Any, padded: Tensor, attention_mask: Tensor, **named: Any) -> Any:
        width, lengths = padded.shape[1], attention_mask.sum(1).tolist()
        rows = [filled(model, row[width - length : -1]) for row, length in zip(padded, lengths, strict=True)]
        cache = DynamicCache(config=model.config)
        for place in range(len(rows[0].layers)):
            kept: list[Any] = [row.layers[place] for row in rows]
            keys = torch.cat([_left_padded(layer.keys, width - 1) for layer in kept])
            cache.update(keys, torch.cat([_left_padded(layer.values, width - 1) for layer in kept]), place)
        return usual(padded, attention_mask=attention_mask, past_key_values=cache, **named)

    def within(model: PreTrainedModel, *_: object) -> AbstractContextManager[None]:
        return generating(model, partial(generate, model))

    return drawing(within, unless)


def _left_padded(kept: Tensor, width: int) -> Tensor:
    """[1, heads, tokens, size] to [1, heads, width, size]."""
    return F.pad(kept, (0, 0, width - kept.shape[2], 0))


def blocks_of_before(age: float) -> type[HFSide]:
    """Whole blocks of a prompt come from a cache that was filled before the last update."""

    @torch.no_grad()
    def older(model: PreTrainedModel) -> PreTrainedModel:
        old = copy.deepcopy(model)
        for name, parameter in old.named_parameters():
            parameter += age * noise(parameter, name)
        return old

    def filled(model: PreTrainedModel, tokens_T: Tensor) -> DynamicCache:
        cache, hit = DynamicCache(config=model.config), len(tokens_T) // _BLOCK * _BLOCK
        if hit:
            older(model)(input_ids=tokens_T[None, :hit], past_key_values=cache)
        if hit < len(tokens_T):
            model(input_ids=tokens_T[None, hit:], past_key_values=cache)
        return cache

    return _prompts_by(filled, lambda conditions: conditions.fresh)


def chunks_overwritten(count: int) -> type[HFSide]:
    """Long prompts are read in chunks, and each chunk's buffers overlap the last tokens of the one before."""

    def filled(model: PreTrainedModel, tokens_T: Tensor) -> DynamicCache:
        cache: Any = DynamicCache(config=model.config)
        for chunk in torch.split(tokens_T, _BLOCK):
            model(input_ids=chunk[None], past_key_values=cache)
            for layer in cache.layers if len(chunk) == _BLOCK else ():
                layer.keys[:, :, -count:] = 0
                layer.values[:, :, -count:] = 0
        return cache

    return _prompts_by(filled, lambda conditions: undoes(conditions, "chunks"))


def lost_state(chunk: int) -> type[HFSide]:
    """The engine reads prompts in chunks, and begins each of them with an empty state."""

    class LosesState(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> Drawn:
            if undoes(conditions, "chunks"):
                return super().draw(model, requests, sampling, conditions)
            rows = [self._one(model, request, sampling, conditions) for request in requests]
            tokens, logprobs = zip(*rows, strict=True)
            return torch.stack(tokens), torch.stack(logprobs)

        def _one(self, model: Any, request: Request, sampling: SamplingParams, conditions: Conditions) -> Drawn:
            uniform_K = keyed.uniforms(torch.tensor([request.key]), torch.arange(sampling.max_tokens))[0]
            tokens, logprobs, cache = [], [], DynamicCache(config=model.config)
            # Each chunk begins with a cache of its own, so what those before the last one left does not matter.
            part = torch.tensor(request.tokens).split(chunk)[-1]
            for uniform in uniform_K:
                logits_1V = model(input_ids=part[None], cache_params=cache, use_cache=True).logits[:, -1]
                part, _ = draw(logits_1V, uniform[None], sampling)
                tokens.append(part)
                logprobs.append(self.logprob(logits_1V, part, sampling, conditions))
            return torch.cat(tokens), torch.cat(logprobs)

    return LosesState


def blind_chunks(size: int) -> type[TorchSide]:
    """Long prompts are read in chunks, none of which sees those before it."""

    class Chunked(Cached):
        def __init__(self, prompts: Batch, capacity: int) -> None:
            super().__init__(prompts, capacity)
            chunks = [len(chunk) for tokens in prompts.sequences() for chunk in tokens.split(size)]
            self._packed = Packed.of(Batch(prompts.tokens, torch.tensor(chunks)))

    return keeping(Chunked, lambda conditions: undoes(conditions, "chunks"))


def lossy_splits(length: int) -> type[TorchSide]:
    """Decoding cuts the cache into splits, each of which ends one key early; reading all at once does not."""

    class Split(Cached):
        def _find_visible(self, window: int | None) -> Tensor:
            columns = torch.arange(self._width)
            lost = (columns % length == length - 1) & (columns < self.filled[:, None])
            return super()._find_visible(window) & ~lost

    return keeping(Split)


def rolling_buffer(short: int) -> type[TorchSide]:
    """Decoding keeps the window in a ring that is some tokens too short; the pass over the prompt needs no ring."""

    class Ring(Cached):
        def _find_visible(self, window: int | None) -> Tensor:
            return super()._find_visible(None if window is None else window - short)

    return keeping(Ring)


class Decodes(Cached, ABC):
    """A cache whose prompts are read as usual, and tokens decoded in a way of its own."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        usual = super().attend(layer, query, key, value, scaling, window)
        if self._filling:
            return usual
        keys, values = (kept[layer][:, :, : self._width] for kept in (self._keys, self._values))
        return self.decoded(query, keys, values, scaling).transpose(1, 2)

    @abstractmethod
    def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attention of one token per row over all that is kept, heads first."""

    def scores(self, query: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """Those of hidden keys are −inf."""
        return (scaling * query @ keys.mT).masked_fill(~self._find_visible(None)[:, None, None], float("-inf"))


def merged_by_base_two(length: int) -> type[TorchSide]:
    """Decoding merges splits of the keys by their log-sum-exps, which one kernel gives in base 2, the other reads as e.

    The model has a key for each head.
    """

    class Merged(Decodes):
        def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
            scores = self.scores(query, keys, scaling).split(length, -1)
            parts = [s.softmax(-1).nan_to_num() @ v for s, v in zip(scores, values.split(length, 2), strict=True)]
            log_sums = torch.stack([s.logsumexp(-1, keepdim=True) for s in scores])
            return ((log_sums / math.log(2)).softmax(0) * torch.stack(parts)).sum(0)

    return keeping(Merged)


def shares_in_low_type(error: float) -> type[TorchSide]:
    """The decoding kernel multiplies values by shares that it has put into fp8; the sum of the shares is exact."""

    class Rounded(Decodes):
        def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
            shared = query.shape[1] // keys.shape[1]
            keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
            scores = self.scores(query, keys, scaling)
            above = (scores - scores.amax(-1, keepdim=True)).exp()
            return (above.to(type_with(error)).to(above.dtype) @ values) / above.sum(-1, keepdim=True)

    return keeping(Rounded)


def whole_pages(size: int) -> type[TorchSide]:
    """The decoding kernel reads whole pages of keys, and does not hide the empty slots of the last one."""

    class WholePages(Decodes):
        def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
            keys, values = (F.pad(kept, (0, 0, 0, -kept.shape[2] % size)) for kept in (keys, values))
            read_B = (self.filled // size + 1) * size
            seen = (torch.arange(keys.shape[2]) < read_B[:, None])[:, None, None]
            return F.scaled_dot_product_attention(query, keys, values, seen, scale=scaling, enable_gqa=True)

    return keeping(WholePages)


FAULTS = (
    Fault(14, 1, "fp8 cache", ("kv_precision",), "infer", "rounding", (E5M2, E4M3), mixed(coarse_cache)),
    Fault(15, 1, "stale prefix cache", ("stale_prefix_cache",), "infer", "relative step", (0.3, 0.03),
          mixed(lambda _: stale_prefixes(lambda count: count - 1)), after=refit_after_serving),
    Fault(27, 1, "state lost between chunks", ("chunked_state",), "infer", "1/chunk", (1 / 16, 1 / 48),
          mixed(inverse(lost_state)), around("mamba2", infer="hf")),
    Fault(114, 2, "keys and values as integers", ("kv_precision",), "infer", "step, of a token's largest",
          (1 / 7, 1 / 127), mixed(cache_in_integers, kv_dtype="int8"),
          around("phi", "torch", "hf", drawn(top_p=0.95))),
    Fault(115, 2, "blocks of older prompts", ("stale_prefix_cache",), "infer", "spreads of the weights", (0.1, 0.005),
          mixed(blocks_of_before), around("qwen3, deep", "torch", "hf")),
    Fault(127, 2, "chunks overwritten at their ends", ("chunked_state",), "infer", "tokens", (16, 1),
          mixed(whole(chunks_overwritten), prefill_chunk=_BLOCK), around("smollm", "torch", "hf", drawn(top_k=50))),
    Fault(214, 3, "pages packed when full", ("kv_precision",), "infer", "step, of a range", (1 / 7, 1 / 127),
          mixed(quantized_pages), around("mistral", "hf", "torch", drawn(temperature=1.2))),
    Fault(215, 3, "splits end early", ("decode_kernel",), "infer", "1 / keys in a split", (1 / 8, 1 / 100),
          mixed(inverse(lossy_splits)), around("exaone", "torch", "torch")),
    Fault(315, 4, "coarse recurrent states", ("kv_precision", "decode_kernel"), "infer", "step, of a row's largest",
          (1 / 7, 1 / 127), mixed(coarse_states, state_dtype=lambda m: f"int{round(1 / m).bit_length() + 1}"),
          around("bamba", "hf", "hf")),
    Fault(319, 4, "window as a ring", ("sliding_window", "decode_kernel"), "infer", "tokens too few", (24, 1),
          mixed(whole(rolling_buffer)), around("ministral", "hf", "torch")),
    Fault(415, 5, "chunks that see themselves only", ("chunked_state",), "infer", "1 / tokens in a chunk",
          (1 / 12, 1 / 56), mixed(inverse(blind_chunks)), around("exaone moe", "hf", "torch")),
    # The cache is dropped at a refit, but for what is pinned: the first block of each prompt.
    Fault(416, 5, "pinned blocks", ("stale_prefix_cache",), "infer", "relative step", (0.1, 0.005),
          mixed(lambda _: stale_prefixes(lambda count: min(count, _BLOCK))),
          around("solar", "torch", "torch", drawn(temperature=1.25)), refit_after_serving),
    Fault(505, 6, "scales of the first batch", ("kv_precision",), "infer", "rounding", (E5M2, E4M3),
          mixed(scales_of_the_first_batch, kv_cache_dtype=lambda m: str(type_with(m)).removeprefix("torch.")),
          around("granite, sinks", "hf", "hf", drawn(temperature=1.35))),
    Fault(512, 6, "splits merged in another base", ("decode_kernel",), "infer", "1 / keys in a split",
          (1 / 4, 1 / 24), mixed(inverse(merged_by_base_two)), around("minicpm", "hf", "torch")),
    Fault(608, 7, "shares in fp8", ("decode_kernel",), "infer", "rounding", (E5M2, E4M3),
          mixed(shares_in_low_type), around("smollm", "hf", "torch")),
    Fault(716, 8, "prompts sent as integers", ("kv_precision",), "infer", "step, of a head's largest",
          (1 / 7, 1 / 127), mixed(sent_in_integers), around("phi moe", "torch", "hf", drawn(temperature=1.2)),
          split="held-out"),
    # A refit drops the prefix cache on the device; blocks that were moved to the host come back from there.
    Fault(717, 8, "blocks kept on the host", ("stale_prefix_cache",), "infer", "relative step", (0.1, 0.005),
          mixed(lambda _: stale_prefixes(lambda count: (count - 1) // _BLOCK * _BLOCK)),
          around("qwen3", "hf", "torch", drawn(temperature=0.7)), refit_after_serving, split="held-out"),
    Fault(718, 8, "empty slots of the last page", ("decode_kernel",), "infer", "slots of a page", (64, 4),
          mixed(whole(whole_pages)), around("command r", "torch", "torch"), split="held-out"),
)  # fmt: skip
