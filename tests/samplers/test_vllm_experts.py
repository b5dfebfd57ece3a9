"""Experts that vLLM's kernels for GPUs reorder, in the same shape, are read back as they were
loaded.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep.core.errors import InputError

pytestmark = [pytest.mark.full, pytest.mark.needs("vllm"), pytest.mark.usefixtures("vllm")]

EXPERTS, ROWS, COLUMNS = 3, 128, 256
"""Sizes that every kernel takes; w13 has 2 × ROWS rows."""


def layer_with(backend: str) -> nn.Module:
    """A layer of experts as vLLM has it once weights are loaded, without an engine around it."""
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )

    method: Any = object.__new__(UnquantizedFusedMoEMethod)
    nn.Module.__init__(method)
    method.unquantized_backend, method.moe_kernel = UnquantizedMoeBackend[backend], None
    layer: Any = object.__new__(RoutedExperts)
    nn.Module.__init__(layer)
    layer.quant_method = method
    layer.moe_config = SimpleNamespace(
        is_act_and_mul=True,
        intermediate_size_per_partition=ROWS,
        intermediate_size_per_partition_unpadded=ROWS,
    )
    return layer


def matrices() -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(0)
    shapes = {"w13_weight": (EXPERTS, 2 * ROWS, COLUMNS), "w2_weight": (EXPERTS, COLUMNS, ROWS)}
    return {name: torch.randn(shape, generator=draws).bfloat16() for name, shape in shapes.items()}


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two functions of FlashInfer that name the order of rows; here, one of our own."""
    import lockstep.samplers.vllm.experts  # noqa: F401 -- vLLM asks whether FlashInfer is there when it is imported

    core: Any = ModuleType("flashinfer.fused_moe.core")

    def reverse_pairs(cache: object, matrix: Tensor, tile: int, **_: object) -> Tensor:
        return torch.arange(len(matrix)).view(-1, 2).flip(1).reshape(-1)

    core._maybe_get_cached_w3_w1_permute_indices = core.get_w2_permute_indices_with_cache = (
        reverse_pairs
    )
    for name in ("flashinfer", "flashinfer.fused_moe"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, core.__name__, core)


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize("backend", ["FLASHINFER_CUTLASS", "FLASHINFER_TRTLLM"])
def test_reordered_experts_are_read_in_the_loaded_order(backend: str) -> None:
    from lockstep.samplers.vllm.experts import find_packing, restore_loaded_order

    layer, loaded = layer_with(backend), matrices()
    pack = find_packing(layer, "w13_weight")
    assert pack is not None
    held = dict(zip(loaded, pack(*(tensor.clone() for tensor in loaded.values())), strict=True))
    assert held["w13_weight"].shape == loaded["w13_weight"].shape
    assert not torch.equal(held["w13_weight"], loaded["w13_weight"])
    for name, tensor in loaded.items():
        assert torch.equal(
            restore_loaded_order(pack, name, held[name], tuple(tensor.shape)), tensor
        ), name
        held[name].view(-1)[5] += 1.0
        assert not torch.equal(
            restore_loaded_order(pack, name, held[name], tuple(tensor.shape)), tensor
        ), name


@pytest.mark.parametrize("backend", ["MOONEP", "XPU", "OOT"])
def test_expert_backend_with_unknown_weight_order_is_refused_by_name(backend: str) -> None:
    from lockstep.samplers.vllm.experts import find_packing

    with pytest.raises(InputError, match=rf"vLLM's expert backend {backend}.*moe_backend=triton"):
        find_packing(layer_with(backend), "w2_weight")
