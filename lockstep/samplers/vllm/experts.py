"""Expert weights in vLLM, which some kernels pad and reorder in undocumented formats."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.oracle.unquantized import (
    UnquantizedMoeBackend,
    convert_to_unquantized_kernel_format,
)
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

from lockstep.core.errors import InputError

_MATRICES = ("w13_weight", "w2_weight")
_DIGITS = 255
"""Base of the numbers for elements: digits from 1 up are exact in bf16; 0 is padding."""
_AS_LOADED = (UnquantizedMoeBackend.TRITON, UnquantizedMoeBackend.BATCHED_TRITON)
_REORDERED = (
    UnquantizedMoeBackend.FLASHINFER_TRTLLM,
    UnquantizedMoeBackend.FLASHINFER_CUTLASS,
    UnquantizedMoeBackend.AITER,
)

PackFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Packs `w13_weight` and `w2_weight` as a kernel does.

The packing depends only on an element's position in its expert.
"""


def find_packing(layer: nn.Module, parameter: str) -> PackFunction | None:
    """The packing of this parameter; None if it is unpacked.

    Raises:
        InputError: The layer's kernel may use an unknown order.
    """
    if not isinstance(layer, RoutedExperts) or parameter not in _MATRICES:
        return None
    method = layer.quant_method
    if not isinstance(method, UnquantizedFusedMoEMethod):
        return None
    if (kernel := _find_cpu_kernel(layer)) is not None:

        def pack_matrices(w13: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
            stand_in = nn.Module()
            for name, tensor in zip(_MATRICES, (w13, w2), strict=True):
                stand_in.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
            kernel.process_weights_after_loading(stand_in)
            packed = dict(stand_in.named_parameters())
            return packed["w13_weight"].detach(), packed["w2_weight"].detach()

        return pack_matrices
    backend = method.unquantized_backend
    config = layer.moe_config
    if backend in _AS_LOADED or backend is UnquantizedMoeBackend.CPU:
        return None
    if backend in _REORDERED:
        return lambda w13, w2: convert_to_unquantized_kernel_format(
            backend, copy.copy(config), w13, w2
        )
    raise InputError(
        f"vLLM's expert backend {backend.value} does not allow reading weights back; set "
        "sampler.vllm.engine_args.moe_backend=triton, or use sampler=torch"
    )


def _find_cpu_kernel(layer: RoutedExperts) -> CPUUnquantizedExperts | None:
    method = layer.quant_method
    if not isinstance(method, UnquantizedFusedMoEMethod) or method.moe_kernel is None:
        return None
    kernel = method.moe_kernel.fused_experts
    if isinstance(kernel, CPUUnquantizedExperts):
        return kernel
    return None


class SuspendedKernels:
    """Removes the kernels of experts during a weight sync.

    vLLM 0.32 packs new weights of experts only if their layer has no kernel yet; an existing kernel
    would compute with unpacked weights, and its results would be wrong.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[Any, Any]] = []
        for layer in model.modules():
            if isinstance(layer, RoutedExperts) and _find_cpu_kernel(layer) is not None:
                method: Any = layer.quant_method
                self._kept.append((method, method.moe_kernel))
                method.moe_kernel = None

    def restore_kernels(self) -> None:
        """Restores the kernels of layers that received no weights."""
        for method, kernel in self._kept:
            method.moe_kernel = method.moe_kernel or kernel


def restore_loaded_order(
    pack: PackFunction, parameter: str, held_ENK: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """A parameter in its loaded form, from the kernel's form.

    Args:
        pack: The kernel's packing.
        parameter: Name of a parameter of the layer.
        held_ENK: The parameter in the kernel's form.
        shape: Loaded shape [E, N, K].
    """
    index = _map_packed_elements(pack, parameter, shape, held_ENK)
    real = index > 0
    plain = torch.zeros(shape, dtype=held_ENK.dtype, device=held_ENK.device)
    plain.view(len(plain), -1)[:, index[real] - 1] = held_ENK.reshape(len(plain), -1)[:, real]
    return plain


def _map_packed_elements(
    pack: PackFunction, parameter: str, shape: tuple[int, ...], held: Tensor
) -> Tensor:
    """Maps each element of a packed expert to 1 + its index in the loaded one, int64; 0: padding.

    Found by packing the indices with the kernel, digit by digit, in the type and on the device of
    `held`.
    """
    _, rows, columns = shape
    index = torch.arange(rows * columns, device=held.device)
    scale = 1
    found = torch.ones((), dtype=torch.int64, device=held.device)
    while scale < rows * columns:
        digit = (index // scale % _DIGITS + 1).to(held.dtype).view(1, rows, columns)
        # the layer's other matrix only gets its shape
        if parameter == "w13_weight":
            matrix, _ = pack(digit, digit.new_zeros(1, columns, rows // 2))
        else:
            _, matrix = pack(digit.new_zeros(1, 2 * columns, rows), digit)
        packed = matrix.reshape(-1).long()
        found = torch.where(packed > 0, found + (packed - 1) * scale, 0)
        scale *= _DIGITS
    return found
