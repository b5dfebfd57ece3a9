"""Backends that not every machine can have: what is missing for one is said, and the others are compared without it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

import torch

from lockstep.doctor.options import BackendName, DoctorRecipe
from lockstep.errors import InputError
from lockstep.models.device import resolve_device

FP8 = {"fp8": {"quantization": "fp8"}, "fp8kv": {"kv_cache_dtype": "fp8"}}
"""Arguments of vLLM by the endings of a backend's name."""

_FP8_FROM = (8, 9)
"""Compute capability of the first GPUs that multiply fp8."""


def fp8_of(name: BackendName) -> Mapping[str, str]:
    """The arguments with which vLLM computes in fp8, or keeps its cache in it; none where a name does not ask."""
    return FP8.get(name.rpartition("-")[2], {})


def explain_missing(name: BackendName, device: torch.device, bf16: bool = False) -> str | None:
    """Says what this machine lacks for a backend; None: nothing that could be known before it starts."""
    if name.startswith("megatron") and bf16 and device.type == "cpu":
        return "Megatron computes bf16 on GPUs alone, and the device is none"
    if name == "megatron-te":
        if find_spec("transformer_engine") is None:
            return "TransformerEngine is not installed"
        return "learner.backend=megatron computes by Megatron's own layers, and has none of TransformerEngine's yet"
    if not fp8_of(name):
        return None
    if find_spec("vllm") is None:
        return "vLLM is not installed"
    if device.type != "cuda":
        return "vLLM computes in fp8 on GPUs alone, and the device is none"
    if torch.cuda.get_device_capability(device) < _FP8_FROM:
        return "the GPU has no products of fp8; those of compute capability 8.9 and later do"
    return None


def find_missing(recipe: DoctorRecipe) -> dict[BackendName, str]:
    """The backends of a recipe that are left out, and why.

    Raises:
        InputError: Fewer than two are left.
    """
    device = resolve_device(recipe.learner.device)
    reasons = {name: explain_missing(name, device, recipe.learner.is_bf16) for name in recipe.backends}
    missing = {name: reason for name, reason in reasons.items() if reason is not None}
    if len(recipe.backends) - len(missing) < 2:
        said = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise InputError(f"backends leaves fewer than two to compare ({said}); name another one that can start here")
    return missing
