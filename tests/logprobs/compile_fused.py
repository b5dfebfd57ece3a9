"""Compiles Triton's kernels for GPUs that are not here, down to their machine code; run by
test_fused_compiles.py.
"""

# pyright: reportMissingImports=false
# Triton is not installed where types are checked.

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lockstep_logprobs.fused import hidden, lanes, rows, support

TYPES = {
    "bf16": ("logits", "gradient", "hidden", "weight"),
    "fp32": ("floor", "sums", "picked", "maximum", "log_total", "slope", "offset", "own"),
    "fp64": ("probability",),
    "i64": ("token",),
}
POINTERS = {name: f"*{kind}" for kind, names in TYPES.items() for name in names}
LENGTHS = ("columns", "depth", "stride", "gradient_stride", "hidden_stride", "weight_stride")
"""Multiples of 16, as in most vocabularies: memory is read in whole vectors."""

CASES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (rows._sum_row, {"floor": None, "ENTROPY": True, "TOKENS": 1}),
    (rows._sum_row, {"ENTROPY": False, "TOKENS": 64}),
    (rows._write_row_gradient, {"slope": None, "floor": None, "TOKENS": 1}),
    (rows._write_row_gradient, {"TOKENS": 64}),
    *(
        case
        for rows_and_columns in (hidden.SMALL, hidden.LARGE)
        for tile in [dict(zip(("ROWS", "COLUMNS"), rows_and_columns, strict=True))]
        for case in (
            (hidden._sum_piece, {"ENTROPY": True, **tile}),
            (hidden._write_tile, {"slope": None, **tile}),
        )
    ),
    (support._find_floor, {"TOP_K": True, "TOP_P": True, "LOWEST_BIT": 16, "TILE": support._TILE}),
    (support._find_floor, {"TOP_K": False, "TOP_P": True, "LOWEST_BIT": 0, "TILE": support._TILE}),
)
"""Kernels, with what is constant in them beside their tiles; None for a tensor that is not
there.
"""

FIXED = {
    "TILE": rows._TILE,
    "HALVINGS": rows._HALVINGS,
    "PIECE": hidden._PIECE,
    "DEPTH": hidden._BYTES // 2,
}


def compile_for(capability: int, kernel: Any, constants: dict[str, Any]) -> int:
    """Compiles for a GPU of NVIDIA. Returns the bytes of shared memory that a program takes."""
    constants = {
        name: value for name, value in (FIXED | constants).items() if name in kernel.arg_names
    }
    kinds = POINTERS | {"scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    even = [
        place
        for place, name in enumerate(signature)
        if signature[name][0] == "*" or name in LENGTHS
    ]
    attributes = {(place,): [["tt.divisibility", 16]] for place in even}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": lanes.WARPS}
    )
    assert compiled.asm["cubin"]
    return compiled.metadata.shared


if __name__ == "__main__":
    for capability in map(int, sys.argv[1:]):
        for kernel, constants in CASES:
            shared = compile_for(capability, kernel, constants)
            print(
                f"{kernel.__name__} {constants}: compute capability {capability}, {shared} bytes "
                "shared"
            )
