"""Weights of experts on a CPU, which vLLM's kernels pad and reorder in a way that only they know."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

_MATRICES = ("w13_weight", "w2_weight")
_DIGITS = 255
"""Base of the numbers that elements get: its digits from 1 on are exact in bf16, and 0 is padding."""


def kernel_of(layer: nn.Module, parameter: str) -> CPUUnquantizedExperts | None:
    """Returns the kernel for CPUs that keeps this parameter in its own order, if one does."""
    if not isinstance(layer, RoutedExperts) or parameter not in _MATRICES:
        return None
    method = layer.quant_method
    if not isinstance(method, UnquantizedFusedMoEMethod) or method.moe_kernel is None:
        return None
    kernel = method.moe_kernel.fused_experts
    return kernel if isinstance(kernel, CPUUnquantizedExperts) else None


class SetAside:
    """Removes the kernels of experts during a weight sync.

    vLLM 0.32 packs new weights of experts only if their layer has no kernel yet; an existing kernel would compute with
    unpacked weights, and its results would be wrong.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[Any, Any]] = []
        for layer in model.modules():
            if isinstance(layer, RoutedExperts) and kernel_of(layer, _MATRICES[0]) is not None:
                method: Any = layer.quant_method
                self._kept.append((method, method.moe_kernel))
                method.moe_kernel = None

    def restore(self) -> None:
        """Puts back the kernels of layers that received no weights."""
        for method, kernel in self._kept:
            method.moe_kernel = method.moe_kernel or kernel


def in_loaded_order(kernel: CPUUnquantizedExperts, parameter: str, held_ENK: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A parameter as it was loaded, from what the kernel computes with.

    Args:
        kernel: The kernel; how it packs an element depends only on its place in the expert's matrix.
        parameter: Name of a parameter of the layer.
        held_ENK: The parameter as the kernel holds it.
        shape: [E, N, K], its shape as it is loaded.
    """
    place = _places(kernel, parameter, shape, held_ENK.dtype)
    real = place > 0
    plain = torch.empty(shape, dtype=held_ENK.dtype)
    plain.view(len(plain), -1)[:, place[real] - 1] = held_ENK.reshape(len(plain), -1)[:, real]
    return plain


def _places(kernel: CPUUnquantizedExperts, parameter: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns, for each element of one packed expert, 1 + its place in the loaded one, int64; 0 is padding.

    Found by having the kernel pack the places, digit by digit.
    """
    _, rows, columns = shape
    place, scale = torch.arange(rows * columns), 1
    found = torch.ones((), dtype=torch.int64)
    while scale < rows * columns:
        digit = (place // scale % _DIGITS + 1).to(dtype).view(1, rows, columns)
        packed = _pack(kernel, parameter, digit).reshape(-1).long()
        found = torch.where(packed > 0, found + (packed - 1) * scale, 0)
        scale *= _DIGITS
    return found


def _pack(kernel: CPUUnquantizedExperts, parameter: str, digit_1NK: Tensor) -> Tensor:
    """Packs one expert's matrix by the kernel's own code; the other matrix of the layer is there for its shape."""
    _, rows, columns = digit_1NK.shape
    other = (1, columns, rows // 2) if parameter == "w13_weight" else (1, 2 * columns, rows)
    stand_in = nn.Module()
    for name in _MATRICES:
        tensor = digit_1NK if name == parameter else torch.zeros(other, dtype=digit_1NK.dtype)
        stand_in.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
    kernel.process_weights_after_loading(stand_in)
    return dict(stand_in.named_parameters())[parameter].detach()
