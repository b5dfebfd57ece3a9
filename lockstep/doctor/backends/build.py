"""The backends that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lockstep.cluster.workers import Workers, workers_of
from lockstep.config import LearnerSection, SamplerSection
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.learner import LearnerBackend, computes_here
from lockstep.doctor.backends.missing import find_missing, fp8_of
from lockstep.doctor.base import Backend
from lockstep.doctor.options import DoctorRecipe, ranks_of
from lockstep.models.device import resolve_device
from lockstep.models.folder import context_of, count_cache_numbers, read_config
from lockstep.report.progress import Progress

_NO_LEARNERS = ("hf", "vllm")
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
    sections = [section_of(recipe, name, compiled) for name in names if not name.startswith(_NO_LEARNERS)]
    ranks = max((section.parallel.ranks for section in sections if not computes_here(section)), default=0)
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
    folder, learner, size = recipe.model.path, recipe.learner, max(recipe.grid.batch_sizes)
    if name == "hf":
        return HFBackend(folder, learner.dtype, size, learner.device)
    if name.startswith("vllm"):
        from lockstep.doctor.backends.vllm import VLLMBackend

        options = {**fp8_of(name), **({} if compiled is None else {"enforce_eager": not compiled})}
        return VLLMBackend(folder, _beside_others(recipe), learner, options, note, workers, ranks_of(name).tp)
    return LearnerBackend(folder, section_of(recipe, name, compiled), name, size, workers)


def section_of(recipe: DoctorRecipe, name: str, compiled: bool | None) -> LearnerSection:
    """The learner that a backend's name stands for."""
    section = LearnerSection.of(recipe.learner, name.partition("-")[0], ranks_of(name))
    return section.model_copy(update={"compile": bool(compiled)})


def _beside_others(recipe: DoctorRecipe) -> SamplerSection:
    """The engine's options; on a GPU its cache has room for the grid, and leaves the rest to the other backends."""
    if resolve_device(recipe.learner.device).type != "cuda" or recipe.sampler.kv_cache_gib is not None:
        return recipe.sampler
    config = read_config(recipe.model.path)
    tokens = max(recipe.grid.batch_sizes) * min(max(recipe.grid.lengths) + _PROMPT, context_of(config))
    room = tokens * count_cache_numbers(config) * 4 / 2**30
    return recipe.sampler.model_copy(update={"kv_cache_gib": max(_LEAST_GIB, room)})
