"""Makes Megatron's modules run on a machine without a GPU.

A few modules of Megatron allocate on `torch.cuda.current_device()` and synchronize with it. Only in
these modules, the name `torch` is replaced by a stand-in whose GPU is the CPU. Its linear layers
recompute under GPU autocast in the backward pass; here, under CPU autocast.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.tensor_parallel import layers, mappings

_MODULES: tuple[Any, ...] = (p2p_communication, schedules, layers, mappings)
_LINEAR: tuple[Any, ...] = (
    layers.LinearWithFrozenWeight,
    layers.LinearWithGradAccumulationAndAsyncCommunication,
)


class _TorchOfCPU:
    """Stand-in for `torch` whose GPU is the CPU."""

    cuda = SimpleNamespace(current_device=lambda: torch.device("cpu"), synchronize=lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


def compute_on_cpu() -> None:
    """Makes Megatron compute on the CPU in this process."""
    for module in _MODULES:
        module.torch = _TorchOfCPU()
    for linear in _LINEAR:
        plain_forward = inspect.unwrap(linear.forward)
        plain_backward = inspect.unwrap(linear.backward)
        linear.forward = staticmethod(torch.amp.custom_fwd(plain_forward, device_type="cpu"))
        linear.backward = staticmethod(torch.amp.custom_bwd(plain_backward, device_type="cpu"))
