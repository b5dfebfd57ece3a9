"""The backends that a recipe names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import Backend
from lockstep.recipe import DoctorRecipe


@contextmanager
def backends_of(recipe: DoctorRecipe) -> Iterator[dict[str, Backend]]:
    """All of them, by name, in the recipe's order; they are closed at the end."""
    with ExitStack() as closing:
        built: dict[str, Backend] = {}
        for name in recipe.backends:
            built[name] = backend_of(recipe, name)
            closing.callback(built[name].close)
        yield built


def backend_of(recipe: DoctorRecipe, name: str) -> Backend:
    """One of them."""
    folder, dtype, size = recipe.model.path, recipe.learner.dtype, max(recipe.grid.batch_sizes)
    if name == "vllm":
        from lockstep.doctor.backends.vllm import VLLMBackend

        return VLLMBackend(folder, recipe.sampler, recipe.learner)
    return HFBackend(folder, dtype, size) if name == "hf" else TorchBackend(folder, dtype, size)
