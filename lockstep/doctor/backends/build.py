"""The backends that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import Backend
from lockstep.recipe import DoctorRecipe


@contextmanager
def backends_of(recipe: DoctorRecipe, note: Callable[[str], object]) -> Iterator[dict[str, Backend]]:
    """All of them, by name, in the recipe's order; they are closed at the end. `note` tells the user what happens."""
    with ExitStack() as closing:
        built: dict[str, Backend] = {}
        for name in recipe.backends:
            built[name] = backend_of(recipe, name, note)
            closing.callback(built[name].close)
        yield built


def backend_of(recipe: DoctorRecipe, name: str, note: Callable[[str], object]) -> Backend:
    """One of them.

    Raises:
        ValueError: If it cannot compute as the recipe says.
    """
    folder, dtype, size = recipe.model.path, recipe.learner.dtype, max(recipe.grid.batch_sizes)
    if name == "vllm":
        from lockstep.doctor.backends.vllm import VLLMBackend

        return VLLMBackend(folder, recipe.sampler, recipe.learner, note=note)
    if recipe.learner.device == "cuda":
        raise ValueError(f"the doctor's {name} computes on the CPU; leave learner.device at auto")
    return HFBackend(folder, dtype, size) if name == "hf" else TorchBackend(folder, dtype, size)
