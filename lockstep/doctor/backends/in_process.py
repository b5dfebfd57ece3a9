"""Base of the backends in this process: a folder's model, in one copy for each type and kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lockstep.config import Device
from lockstep.doctor.base import USUAL, Capability, Conditions, DType, Layout
from lockstep.errors import InputError
from lockstep.models.device import resolve_device
from lockstep.models.folder import context_of, read_config, skeleton
from lockstep.models.weight_files import check_weights

TORCH_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NO_NUMBERS = ("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache", "torch_dtype")
"""Fields of a configuration that change no number, or that `settings` tells."""


class InProcessBackend(ABC):
    """Part of `doctor.base.Backend`; scoring, drawing and reading are each backend's own.

    Raises:
        ValueError: If the backend does not compute in that type.
    """

    held: ClassVar[DType | None]
    """The type in which weights are held; None: in that of the computation."""
    layout: ClassVar[Layout]
    """Default layout of a batch."""
    types: ClassVar[tuple[DType, ...]]
    """Supported compute dtypes."""
    name: str
    capabilities: frozenset[Capability] = frozenset(("generate", "shaped"))

    def __init__(self, folder: str, dtype: DType = "fp32", batch_size: int = 8, device: Device = "cpu") -> None:
        if dtype not in self.types:
            known = " or ".join(self.types)
            raise InputError(f"the {self.name} learner computes in {known}; choose one of these, or the backend hf")
        self.device, self._folder = resolve_device(device), folder
        empty = skeleton(read_config(folder), folder)
        check_weights(folder, empty)
        self._sdpa = bool(empty._supports_sdpa)
        self._models: dict[tuple[DType | None, str], PreTrainedModel] = {}
        self._usual = Conditions(dtype=dtype, batch_size=batch_size, layout=self.layout)
        self.context = context_of(self.read_config())

    @abstractmethod
    def attention(self, conditions: Conditions) -> str:
        """The attention that the backend computes with, by its name in `transformers`."""

    @abstractmethod
    def logits(self, tokens_T: Tensor) -> Tensor:
        """Logits of one sequence alone, in the type that the backend takes its log-softmax of, [T, V]."""

    def read_config(self) -> PreTrainedConfig:
        """The model's configuration."""
        return read_config(self._folder)

    def config(self) -> Mapping[str, Any]:
        return flat_fields(self.read_config().get_text_config().to_dict())

    def settings(self) -> Mapping[str, Any]:
        return {
            "dtype": self._usual.dtype,
            "device": self.device.type,
            "kernel": self.attention(self._usual),
            "layout": self._usual.layout,
            "batch_size": self._usual.batch_size,
            "training": any(module.training for module in self.model().modules()),
        }

    def close(self) -> None:  # noqa: B027 (nothing to do for most)
        """It has no processes of its own."""

    def model(self, conditions: Conditions = USUAL) -> PreTrainedModel:
        """The model for some conditions."""
        asked = self._usual.but(conditions)
        key = asked.dtype, self.attention(asked)
        if key not in self._models:
            self._models[key] = self.build(asked)
        return self._models[key]

    def build(self, conditions: Conditions) -> PreTrainedModel:
        """Reads the model from its folder, in evaluation mode."""
        model = AutoModelForCausalLM.from_pretrained(
            self._folder,
            config=self.read_config(),
            dtype=TORCH_TYPES[self.held or conditions.dtype or "fp32"],
            attn_implementation=self.attention(conditions),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        ).eval()
        nn.Module.to(model, self.device)  # in place; its own `to` is typed for wrappers
        return model


def flat_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a configuration as one mapping; what lies in a mapping gets both names, `a.b`."""
    inner = {
        f"{name}.{key}": v for name, value in fields.items() if isinstance(value, dict) for key, v in value.items()
    }
    own = {name: value for name, value in fields.items() if not isinstance(value, dict)}
    return {name: value for name, value in {**own, **inner}.items() if name not in _NO_NUMBERS}
