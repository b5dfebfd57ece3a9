"""Faults of how a pass is made: sums, caches, state, padding, packing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault, Setup
from benchmarks.doctor_faults.kept import KnowsPrompts
from benchmarks.doctor_faults.means import E4M3, E5M2, rounded, some_layers, summed, type_with
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep import keyed
from lockstep.batch import Batch
from lockstep.distributed.sampling import draw
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Conditions, Layout
from lockstep.models.attention import Cached
from lockstep.samplers.torch.model_sampler import ModelSampler
from lockstep.samplers.torch.static import StaticSampler
from lockstep.types import Request, SamplingParams

_Forward = Callable[..., Tensor]


def keeping(cache: type[Cached]) -> type[TorchSide]:
    """A backend whose sampler keeps keys and values in another cache."""

    class Sampler(StaticSampler):
        def _cache(self, prompts: Batch, capacity: int) -> Cached:
            return cache(prompts, capacity)

    class Keeps(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
            return Sampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return Keeps


class Decodes(Cached, ABC):
    """A cache whose prompts are read as usual, and tokens decoded in a way of its own."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        exact = super().attend(layer, query, key, value, scaling, window)
        if self._filling:
            return exact
        keys, values = (kept[layer][:, :, : self._width] for kept in (self._keys, self._values))
        return self.decoded(query, keys, values, scaling).transpose(1, 2)

    @abstractmethod
    def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Attention of one token per row over all that is kept, heads first."""


def coarse_cache(error: float) -> tuple[Change, ...]:
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

    class CoarseSampler(StaticSampler):
        def _cache(self, prompts: Batch, capacity: int) -> Cached:
            return CoarseCached(prompts, capacity)

    class CoarseCache(TorchSide):
        def sampler(self, model: PreTrainedModel, conditions: Conditions) -> ModelSampler:
            if undoes(conditions, "cache"):
                return super().sampler(model, conditions)
            return CoarseSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")

    return (Change("infer", CoarseCache),)


def batch_variant(share: float) -> tuple[Change, ...]:
    """Where several rows are in a pass, the trainer's kernels cut the inner dimension and add up in bf16."""

    def forward(linear: nn.Linear) -> _Forward:
        usual = linear.forward
        return lambda x: summed(x, linear, range(8), torch.bfloat16) if x.shape[0] > 1 else usual(x)

    return (Change("train", alter=_with_linears(share, forward)),)


def random_order(share: float) -> tuple[Change, ...]:
    """The engine's kernels add up parts in bf16, in the order that they are ready in."""

    def forward(linear: nn.Linear) -> _Forward:
        return lambda x: summed(x, linear, torch.randperm(8).tolist(), torch.bfloat16)

    return (Change("infer", alter=_with_linears(share, forward)),)


def two_ranks(share: float) -> tuple[Change, ...]:
    """The engine's row-parallel layers lie on two ranks, and their sum is made in bf16.

    The ranks are two halves of the product in one process; there is no learner with layers on several ranks yet, where
    the same fault can be made with a real all-reduce.
    """

    class TwoRanks(TorchSide):
        def settings(self) -> dict[str, Any]:
            return {**super().settings(), "tensor_parallel_size": 2}

    def forward(linear: nn.Linear) -> _Forward:
        return lambda x: summed(x, linear, range(2), torch.bfloat16)

    return (Change("infer", TwoRanks, _with_linears(share, forward, ("o_proj", "down_proj"))),)


def lost_state(inverse: float) -> tuple[Change, ...]:
    """The engine reads prompts in chunks, and begins each of them with an empty state."""
    chunk = round(1 / inverse)

    class LosesState(HFSide):
        def draw(
            self, model: PreTrainedModel, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions
        ) -> tuple[Tensor, Tensor]:
            if undoes(conditions, "chunks"):
                return super().draw(model, requests, sampling, conditions)
            rows = [self._one(model, request, sampling, conditions) for request in requests]
            tokens, logprobs = zip(*rows, strict=True)
            return torch.stack(tokens), torch.stack(logprobs)

        def _one(
            self, model: PreTrainedModel, request: Request, sampling: SamplingParams, conditions: Conditions
        ) -> tuple[Tensor, Tensor]:
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

    return (Change("infer", LosesState),)


def dropping_out(probability: float) -> tuple[Change, ...]:
    """The trainer never leaves its training mode."""

    def alter(model: PreTrainedModel) -> None:
        model.train()

    return (Change("train", alter=alter),)


def with_dropout(probability: float) -> Setup:
    """A model whose configuration asks for dropout in training."""
    return Setup(config=(("attention_dropout", probability),))


class Packs(KnowsPrompts):
    """A trainer that packs."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._usual = replace(self._usual, layout="packed")

    def packed(self, model: PreTrainedModel, sequences: Sequences, position_N: Tensor, visible_NN: Tensor) -> Sequences:
        """Logits of sequences in one row, with positions and a mask of the trainer's own."""
        dtype = next(model.parameters()).dtype
        mask_NN = torch.zeros(visible_NN.shape, dtype=dtype).masked_fill(~visible_NN, torch.finfo(dtype).min)
        tokens_N = torch.cat(list(sequences))
        logits_NV = model(
            input_ids=tokens_N[None], position_ids=position_N[None], attention_mask=mask_NN[None, None], use_cache=False
        ).logits[0]
        return torch.split(logits_NV, [len(tokens) for tokens in sequences])


def packing_rows(most: int, row: Callable[[Packs, PreTrainedModel, Sequences], Sequences]) -> type[Packs]:
    """A trainer that packs up to so many sequences into a row, and makes a pass for each."""

    class PacksRows(Packs):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "packed":
                return super().compute_logits(model, sequences, layout)
            rows = [sequences[start : start + most] for start in range(0, len(sequences), most)]
            return [own for each in rows for own in row(self, model, each)]

    return PacksRows


def gap_before_response(most: float) -> tuple[Change, ...]:
    """Positions are counted in a grid whose responses all begin in one column, and the gaps stay when it is packed."""

    class GapBeforeResponse(Packs):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "packed":
                return super().compute_logits(model, sequences, layout)
            prompts = [self.prompt_length(tokens) for tokens in sequences]
            gaps = [min(max(prompts) - own, round(most)) for own in prompts]
            positions = [
                torch.arange(len(tokens)) + gap * (torch.arange(len(tokens)) >= own)
                for tokens, own, gap in zip(sequences, prompts, gaps, strict=True)
            ]
            return self.packed(model, sequences, torch.cat(positions), _visible(sequences, 0))

    return (Change("train", GapBeforeResponse),)


def leaking_pack(most: float) -> tuple[Change, ...]:
    """Each packed sequence also sees the last tokens before its own first one: its boundaries lie too far left."""

    class LeakingPack(Packs):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "packed":
                return super().compute_logits(model, sequences, layout)
            positions = torch.cat([torch.arange(len(tokens)) for tokens in sequences])
            return self.packed(model, sequences, positions, _visible(sequences, round(most)))

    return (Change("train", LeakingPack),)


def _visible(sequences: Sequences, too_many: int) -> Tensor:
    """Which packed tokens see which: those of their own sequence up to themselves, and some before, bool [N, N]."""
    lengths = torch.tensor([len(tokens) for tokens in sequences])
    first_N = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    place = torch.arange(int(lengths.sum()))
    return (place[None] <= place[:, None]) & (place[None] >= first_N[:, None] - too_many)


def _with_linears(
    share: float,
    forward: Callable[[nn.Linear], _Forward],
    names: tuple[str, ...] = ("_proj",),
) -> Callable[[PreTrainedModel], None]:
    def alter(model: PreTrainedModel) -> None:
        for layer in some_layers(model, share):
            for name, module in layer.named_modules():
                if isinstance(module, nn.Linear) and name.endswith(names):
                    module.forward = forward(module)

    return alter


PASSES = (
    Fault(14, "fp8 cache", ("kv_precision",), "infer", "rounding", (E5M2, E4M3), coarse_cache),
    Fault(23, "batch variance", ("batch_variance",), "train", "share of layers", (1.0, 0.25), batch_variant),
    Fault(24, "random order of sums", ("nondeterminism",), "infer", "share of layers", (1.0, 0.25), random_order),
    Fault(
        27,
        "state lost between chunks",
        ("chunked_state",),
        "infer",
        "1/chunk",
        (1 / 16, 1 / 48),
        lost_state,
        lambda _: Setup(model="mamba2", infer="hf"),
    ),
    Fault(28, "sum over two ranks", ("parallel_reduction",), "infer", "share of layers", (1.0, 0.25), two_ranks),
    Fault(29, "dropout left on", ("dropout",), "train", "probability", (0.1, 0.01), dropping_out, with_dropout),
    Fault(31, "gap before the response", ("packed_positions",), "train", "most tokens", (1000, 1), gap_before_response),
    Fault(32, "leaking pack", ("packed_leak",), "train", "tokens seen", (1000, 1), leaking_pack),
)
"""Each with its number in the list."""
