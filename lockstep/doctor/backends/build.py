"""The backends that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import Backend
from lockstep.recipe import DoctorRecipe
from lockstep.runtime.cluster import Workers, workers_of
from lockstep.runtime.progress import Progress


@contextmanager
def backends_of(recipe: DoctorRecipe, shown: Progress) -> Iterator[dict[str, Backend]]:
    """All of them, by name, in the recipe's order; they are closed at the end. `shown` is what the user sees."""
    samplers = recipe.backends.count("vllm")
    with workers_of(recipe.cluster, recipe.learner, shown, samplers=samplers) as workers:
        built: dict[str, Backend] = {}
        for name in recipe.backends:
            built[name] = backend_of(recipe, name, shown.note, workers)
            workers.callback(built[name].close)
        yield built


def backend_of(recipe: DoctorRecipe, name: str, note: Callable[[str], object], workers: Workers) -> Backend:
    """One of them.

    Raises:
        ValueError: If it cannot compute as the recipe says.
    """
    folder, dtype, size = recipe.model.path, recipe.learner.dtype, max(recipe.grid.batch_sizes)
    if name == "vllm":
        from lockstep.doctor.backends.vllm import VLLMBackend

        return VLLMBackend(folder, recipe.sampler, recipe.learner, note=note, workers=workers)
    if recipe.learner.device == "cuda":
        raise ValueError(f"the doctor's {name} computes on the CPU; leave learner.device at auto")
    return HFBackend(folder, dtype, size) if name == "hf" else TorchBackend(folder, dtype, size)
