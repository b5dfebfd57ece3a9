"""The backends that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lockstep.cluster.workers import Workers, workers_of
from lockstep.config import LearnerSection, SamplerSection
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.mesh import MeshBackend
from lockstep.doctor.backends.missing import find_missing, fp8_of
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import Backend
from lockstep.doctor.options import DoctorRecipe, ranks_of
from lockstep.models.device import resolve_device
from lockstep.models.folder import context_of, count_cache_numbers, read_config
from lockstep.report.progress import Progress

_PROMPT, _LEAST_GIB = 512, 0.5
"""Tokens of a prompt that the cache has room for beside a response, and its least size."""


@contextmanager
def backends_of(recipe: DoctorRecipe, shown: Progress) -> Iterator[dict[str, Backend]]:
    """All that this machine can have, by name, in the recipe's order; they are closed at the end.

    `shown` is what the user sees.
    """
    missing = find_missing(recipe)
    for name, reason in missing.items():
        shown.note(f"{name} is skipped: {reason}")
    with open_backends(recipe, [name for name in recipe.backends if name not in missing], shown) as built:
        yield built


@contextmanager
def open_backends(
    recipe: DoctorRecipe, names: Sequence[str], shown: Progress, compiled: bool | None = None
) -> Iterator[dict[str, Backend]]:
    """Some backends, by name; they are closed at the end. `compiled` is as in `backend_of`."""
    ranks = max((ranks_of(name).ranks for name in names if _over_ranks(name, compiled)), default=0)
    width = max((ranks_of(name).tp for name in names if name.startswith("vllm")), default=0)
    sampler = recipe.sampler.model_copy(update={"tensor_parallel": width}) if width else None
    with workers_of(recipe.cluster, recipe.learner, shown, ranks, sampler) as workers:
        built: dict[str, Backend] = {}
        for name in names:
            built[name] = backend_of(recipe, name, shown.note, workers, compiled)
            workers.callback(built[name].close)
        yield built


def backend_of(
    recipe: DoctorRecipe, name: str, note: Callable[[str], object], workers: Workers, compiled: bool | None = None
) -> Backend:
    """One of them.

    Args:
        compiled: With compiled layers or eager ones, for engines and the torch learner; None: as usual.

    Raises:
        ValueError: If it cannot compute as the recipe says.
    """
    folder, dtype, size = recipe.model.path, recipe.learner.dtype, max(recipe.grid.batch_sizes)
    parallel = ranks_of(name)
    if name.startswith("vllm"):
        from lockstep.doctor.backends.vllm import VLLMBackend

        options = {**fp8_of(name), **({} if compiled is None else {"enforce_eager": not compiled})}
        return VLLMBackend(
            folder, _beside_others(recipe), recipe.learner, options, note=note, workers=workers, tp=parallel.tp
        )
    if _over_ranks(name, compiled):
        trainer = "megatron" if name.startswith("megatron") else "torch"
        section = LearnerSection.of(recipe.learner, trainer, parallel)
        section = section.model_copy(update={"compile": bool(compiled)})
        return MeshBackend(name, folder, section, workers)
    kind = HFBackend if name == "hf" else TorchBackend
    return kind(folder, dtype, size, device=recipe.learner.device)


def _beside_others(recipe: DoctorRecipe) -> SamplerSection:
    """The engine's options; on a GPU its cache has room for the grid, and leaves the rest to the other backends."""
    if resolve_device(recipe.learner.device).type != "cuda" or recipe.sampler.kv_cache_gib is not None:
        return recipe.sampler
    config = read_config(recipe.model.path)
    tokens = max(recipe.grid.batch_sizes) * min(max(recipe.grid.lengths) + _PROMPT, context_of(config))
    room = tokens * count_cache_numbers(config) * 4 / 2**30
    return recipe.sampler.model_copy(update={"kv_cache_gib": max(_LEAST_GIB, room)})


def _over_ranks(name: str, compiled: bool | None) -> bool:
    """Returns True for a learner with processes of its own, such as one with compiled layers."""
    own = name.startswith("torch") and (ranks_of(name).ranks > 1 or bool(compiled))
    return name.startswith("megatron") or own
