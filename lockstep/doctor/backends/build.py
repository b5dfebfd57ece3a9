"""The backends that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lockstep.cluster.workers import Workers, workers_of
from lockstep.config import LearnerSection
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.mesh import MeshBackend
from lockstep.doctor.backends.missing import find_missing, fp8_of
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import Backend
from lockstep.doctor.options import DoctorRecipe, ranks_of
from lockstep.errors import InputError
from lockstep.report.progress import Progress


@contextmanager
def backends_of(recipe: DoctorRecipe, shown: Progress) -> Iterator[dict[str, Backend]]:
    """All that this machine can have, by name, in the recipe's order; they are closed at the end.

    `shown` is what the user sees.
    """
    for name in recipe.backends:
        _require_cpu(recipe, name)
    missing = find_missing(recipe)
    for name, reason in missing.items():
        shown.note(f"{name} is skipped: {reason}")
    names = [name for name in recipe.backends if name not in missing]
    ranks = max((ranks_of(name).ranks for name in names if _over_ranks(name)), default=0)
    width = max((ranks_of(name).tp for name in names if name.startswith("vllm")), default=0)
    sampler = recipe.sampler.model_copy(update={"tensor_parallel": width}) if width else None
    with workers_of(recipe.cluster, recipe.learner, shown, ranks, sampler) as workers:
        built: dict[str, Backend] = {}
        for name in names:
            built[name] = backend_of(recipe, name, shown.note, workers)
            workers.callback(built[name].close)
        yield built


def backend_of(recipe: DoctorRecipe, name: str, note: Callable[[str], object], workers: Workers) -> Backend:
    """One of them.

    Raises:
        ValueError: If it cannot compute as the recipe says.
    """
    folder, dtype, size = recipe.model.path, recipe.learner.dtype, max(recipe.grid.batch_sizes)
    parallel = ranks_of(name)
    if name.startswith("vllm"):
        from lockstep.doctor.backends.vllm import VLLMBackend

        return VLLMBackend(
            folder, recipe.sampler, recipe.learner, fp8_of(name), note=note, workers=workers, tp=parallel.tp
        )
    if _over_ranks(name):
        trainer = "megatron" if name.startswith("megatron") else "torch"
        section = LearnerSection.of(recipe.learner, trainer, parallel)
        return MeshBackend(name, folder, section, workers)
    return HFBackend(folder, dtype, size) if name == "hf" else TorchBackend(folder, dtype, size)


def _require_cpu(recipe: DoctorRecipe, name: str) -> None:
    """Raises InputError if a backend that computes on the CPU alone is asked for on a GPU."""
    if recipe.learner.device == "cuda" and not name.startswith("vllm"):
        raise InputError(f"the doctor's {name} computes on the CPU; leave learner.device at auto")


def _over_ranks(name: str) -> bool:
    """Whether a backend is a learner in processes of its own."""
    return name.startswith("megatron") or (name.startswith("torch") and ranks_of(name).ranks > 1)
