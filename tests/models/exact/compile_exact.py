"""Compiles Triton's kernels for exact models for GPUs that are not here; run by
test_fused_exact.py.
"""

# pyright: reportMissingImports=false
# Triton is not installed where types are checked.

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lockstep.models.exact.fused import attention, products
from lockstep_logprobs.fused import lanes

PRODUCT = {"ROWS": products._ROWS, "COLUMNS": products._COLUMNS}
ATTENTION = {"ROWS": attention._ROWS, "KEYS": attention._KEYS}
CASES: tuple[tuple[Any, str, dict[str, Any]], ...] = (
    (products._multiply_kernel, "bf16", {**PRODUCT, "DEPTH": products._BYTES // 2}),
    (products._multiply_kernel, "bf16", {**PRODUCT, "DEPTH": products._BYTES // 2, "bias": None}),
    (products._multiply_kernel, "fp32", {**PRODUCT, "DEPTH": products._BYTES // 4, "bias": None}),
    (products._mean_squares, "fp32", {"TILE": products._TILE, "HALVINGS": products._HALVINGS}),
    (attention._attend_kernel, "fp32", {**ATTENTION, "SIZE": 128}),
    (attention._attend_kernel, "fp32", {**ATTENTION, "SIZE": 128, "mask": None}),
)
"""Kernels, the type of what they read, and what is constant in them."""

TENSORS = ("x", "weight", "bias", "out", "query", "key", "value", "mask")


def compile_for(capability: int, kernel: Any, dtype: str, constants: dict[str, Any]) -> int:
    """Compiles for a GPU of NVIDIA. Returns the bytes of shared memory that a program takes."""
    kinds = (
        dict.fromkeys(TENSORS, f"*{dtype}")
        | {"scaling": "fp32"}
        | dict.fromkeys(constants, "constexpr")
    )
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": lanes.WARPS}
    )
    assert compiled.asm["cubin"]
    return compiled.metadata.shared


if __name__ == "__main__":
    for capability in map(int, sys.argv[1:]):
        for kernel, dtype, constants in CASES:
            shared = compile_for(capability, kernel, dtype, constants)
            print(
                f"{kernel.__name__} {dtype} {constants}: compute capability {capability}, "
                f"{shared} bytes shared"
            )
