"""Faults of what an engine holds after a refit: old, rounded or forgotten tensors, and what was computed with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Case, Change, Fault, Setup
from benchmarks.doctor_faults.kept import step
from benchmarks.doctor_faults.means import embedding_of, head_of
from benchmarks.doctor_faults.sides import TorchSide
from lockstep.batch import Batch
from lockstep.doctor.base import Conditions
from lockstep.models.attention import Cached
from lockstep.samplers.torch.static import StaticSampler

_Prefixes = dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]]
"""Keys and values of a layer for the beginning of a prompt, [H, T, D] each."""


def refit(case: Case, size: float) -> None:
    """All that the trainer names is sent, and taken."""
    case.infer.load(step(case, size).items())


def refit_after_serving(case: Case, size: float) -> None:
    """The engine has served these prompts before the step."""
    case.infer.generate(case.requests, case.sampling)
    refit(case, size)


def untied_head(size: float) -> tuple[Change, ...]:
    """The engine copies the embedding into a head of its own; the trainer names only the embedding."""

    def alter(model: PreTrainedModel) -> None:
        head_of(model).weight = nn.Parameter(embedding_of(model).weight.detach().clone())

    return (Change("infer", alter=alter),)


def lost_normaliser(share: float) -> tuple[Change, ...]:
    """The factor of the embedding is a buffer that no checkpoint has, and the engine fills it with something else."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        embedding_of(model).get_buffer("embed_scale").mul_(1 - share)

    return (Change("infer", alter=alter),)


class _Reusing(Cached):
    """Takes keys and values of the beginnings of prompts from a store, where they were read before."""

    def __init__(self, prompts: Batch, capacity: int, prefixes: _Prefixes, end: int) -> None:
        super().__init__(prompts, capacity)
        self._prefixes = prefixes
        self._beginnings = [tuple(tokens[:end].tolist()) for tokens in prompts.sequences()]
        self._starts = prompts.starts.tolist()

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        if self._filling:
            key, value = key.clone(), value.clone()
            for beginning, start in zip(self._beginnings, self._starts, strict=True):
                read = slice(start, start + len(beginning))
                fresh = key[0, :, read].clone(), value[0, :, read].clone()
                key[0, :, read], value[0, :, read] = self._prefixes.setdefault((layer, beginning), fresh)
        return super().attend(layer, query, key, value, scaling, window)


class StalePrefixes(TorchSide):
    """Keeps the keys and values of prompts, all but those of the last token, also when weights change."""

    end = -1

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._prefixes: dict[tuple[int, str | None], _Prefixes] = {}

    def sampler(self, model: PreTrainedModel, conditions: Conditions) -> StaticSampler:
        if conditions.fresh:
            self._prefixes.clear()
        prefixes, end = self._prefixes.setdefault((id(model), conditions.dtype), {}), self.end

        class ReusingSampler(StaticSampler):
            def _cache(self, prompts: Batch, capacity: int) -> Cached:
                return _Reusing(prompts, capacity, prefixes, end)

        return ReusingSampler(model, conditions.batch_size or 1, conditions.dtype == "bf16")


WEIGHTS = (
    Fault(
        15,
        "stale prefix cache",
        ("stale_prefix_cache",),
        "infer",
        "relative step",
        (0.3, 0.03),
        lambda _: (Change("infer", StalePrefixes),),
        after=refit_after_serving,
    ),
    Fault(
        18,
        "stale tied head",
        ("tied_head",),
        "infer",
        "relative step",
        (0.3, 0.03),
        untied_head,
        lambda _: Setup(model="qwen2"),
        refit,
    ),
    Fault(
        26,
        "lost normaliser",
        ("missed_buffer",),
        "infer",
        "share of it",
        (0.5, 0.02),
        lost_normaliser,
        lambda _: Setup(model="gemma2"),
    ),
)
"""Each with its number in the list."""
