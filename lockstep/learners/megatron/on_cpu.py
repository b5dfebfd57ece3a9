"""Megatron's modules on a machine without a GPU; nothing of this is used where there is one.

They ask for memory "on the current GPU", by that name, and wait for it. Here the names of a few modules stand for the
CPU instead. Nothing outside of these modules sees that.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.tensor_parallel import layers, mappings

_MODULES: tuple[Any, ...] = (p2p_communication, schedules, layers, mappings)


class _TorchOfCPU:
    """Torch, but for the GPU, which is the CPU."""

    cuda = SimpleNamespace(current_device=lambda: torch.device("cpu"), synchronize=lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


def compute_on_cpu() -> None:
    """Makes Megatron compute on the CPU in this process."""
    for module in _MODULES:
        module.torch = _TorchOfCPU()
