"""The registry of families. To add one, add a file to this folder and its name to `_FILES`."""

from __future__ import annotations

from importlib import import_module

from transformers import PreTrainedConfig

from lockstep.models.families.base import ModelFamily

_FILES = (
    "llama",
    "qwen2",
    "qwen3",
)  # fmt: skip

EXACT_TYPES = (
    "gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen3",
    "qwen3_moe",
)  # fmt: skip
"""Models that `models.exact` fully computes; see `tests/models/exact/test_exact_model.py`."""

GPU_EXACT_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""The subset for GPUs; see `tests/models/exact/test_fused_model.py` (Triton's interpreter)."""


def _import_family(name: str) -> ModelFamily:
    family = import_module(f"lockstep.models.families.{name}").FAMILY
    assert isinstance(family, ModelFamily), (
        f"FAMILY of lockstep/models/families/{name}.py is not a Family"
    )
    return family


FAMILIES = tuple(map(_import_family, _FILES))


def find_family(config: PreTrainedConfig) -> ModelFamily:
    """The family of a model; an unregistered type gets a family without optional features."""
    kind = config.model_type
    return next((family for family in FAMILIES if family.model_type == kind), ModelFamily(kind))


def has_exact_layers(config: PreTrainedConfig) -> bool:
    """True if `models.exact` computes all layers of a model."""
    return config.model_type in EXACT_TYPES


def has_exact_layers_on_gpus(config: PreTrainedConfig) -> bool:
    """True if `models.exact` computes all layers of a model on GPUs."""
    return config.model_type in GPU_EXACT_TYPES


def list_tensor_parallel() -> str:
    """The families that support tensor parallelism, for messages."""
    return ", ".join(family.model_type for family in FAMILIES if family.tensor_parallel is not None)


def list_megatron() -> str:
    """The families that Megatron's layers support, for messages."""
    return ", ".join(family.model_type for family in FAMILIES if family.megatron is not None)
