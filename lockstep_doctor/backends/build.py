"""Builds the backends of a recipe; those that the machine cannot run are reported and skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lockstep.cluster.workers import WorkerPool, open_worker_pool
from lockstep.config import DType, LearnerSection, SamplerSection
from lockstep.core.errors import InputError
from lockstep.models.device import resolve_device
from lockstep.models.folder import count_cache_numbers, find_context_length, read_config
from lockstep.models.precision import TORCH_TYPES
from lockstep.report.progress import RunProgress
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.learner import LearnerBackend
from lockstep_doctor.table.base import Backend
from lockstep_doctor.table.options import BackendName, DoctorRecipe, ranks_of

_NO_LEARNERS = ("hf", "vllm")
_PROMPT = 512
_LEAST_GIB = 0.5
"""Prompt tokens that the cache holds in addition to a response, and the smallest cache in GiB."""


@contextmanager
def backends_of(recipe: DoctorRecipe, shown: RunProgress) -> Iterator[dict[str, Backend]]:
    """Opens all backends that this machine can run, by name, in the recipe's order, and closes them
    at the end.

    Progress is reported to `shown`.
    """
    missing = find_missing(recipe)
    for name, reason in missing.items():
        shown.show_note(f"{name} is skipped: {reason}")
    names = [name for name in recipe.backends if name not in missing]
    sections = [section_of(recipe, name) for name in names if not name.startswith(_NO_LEARNERS)]
    ranks = max(
        (section.parallel.ranks for section in sections if not section.in_process), default=0
    )
    width = max((ranks_of(name).tp for name in names if name.startswith("vllm")), default=0)
    if width:
        sampler = recipe.sampler.model_copy(update={"tensor_parallel": width})
    else:
        sampler = None
    with open_worker_pool(recipe.cluster, recipe.learner, shown, ranks, sampler) as workers:
        built: dict[str, Backend] = {}
        for name in names:
            built[name] = backend_of(recipe, name, shown.show_note, workers)
            workers.callback(built[name].close)
        yield built


def backend_of(
    recipe: DoctorRecipe, name: str, note: Callable[[str], object], workers: WorkerPool
) -> Backend:
    """Builds one backend.

    Raises:
        ValueError: It cannot compute as the recipe says.
    """
    folder = recipe.model.path
    learner = recipe.learner
    size = max(recipe.grid.batch_sizes)
    if name == "hf":
        return HFBackend(folder, learner.dtype, size, learner.device)
    if name.startswith("vllm"):
        from lockstep_doctor.backends.vllm import VLLMBackend

        return VLLMBackend(
            folder, _size_sampler_section(recipe), learner, note, workers, ranks_of(name).tp
        )
    return LearnerBackend(folder, section_of(recipe, name), name, size, workers)


def section_of(recipe: DoctorRecipe, name: str) -> LearnerSection:
    """The learner section of a backend's name."""
    return LearnerSection.from_computation(recipe.learner, name.partition("-")[0], ranks_of(name))


def _size_sampler_section(recipe: DoctorRecipe) -> SamplerSection:
    """The sampler section; on a GPU its cache is just large enough for the grid, to leave memory to
    the other backends.
    """
    if (
        resolve_device(recipe.learner.device).type != "cuda"
        or recipe.sampler.kv_cache_gib is not None
    ):
        return recipe.sampler
    config = read_config(recipe.model.path)
    tokens = max(recipe.grid.batch_sizes) * min(
        max(recipe.grid.lengths) + _PROMPT, find_context_length(config)
    )
    room = tokens * count_cache_numbers(config) * 4 / 2**30
    return recipe.sampler.model_copy(update={"kv_cache_gib": max(_LEAST_GIB, room)})


def explain_missing(name: BackendName, device: torch.device, dtype: DType = "fp32") -> str | None:
    """Explains why this machine cannot run a backend; None if no reason is known in advance."""
    if not name.startswith("megatron"):
        return None
    if TORCH_TYPES[dtype] == torch.float16:
        return "Megatron does not compute in fp16"
    if TORCH_TYPES[dtype] == torch.bfloat16 and device.type == "cpu":
        return "Megatron computes bf16 only on GPUs"
    return None


def find_missing(recipe: DoctorRecipe) -> dict[BackendName, str]:
    """The backends of a recipe that this machine cannot run, with reasons.

    Raises:
        InputError: Fewer than two backends are left.
    """
    device = resolve_device(recipe.learner.device)
    missing: dict[BackendName, str] = {}
    for name in recipe.backends:
        reason = explain_missing(name, device, recipe.learner.dtype)
        if reason is not None:
            missing[name] = reason
    if len(recipe.backends) - len(missing) < 2:
        why = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise InputError(
            f"backends leaves fewer than two to compare ({why}); add one that can start here"
        )
    return missing
