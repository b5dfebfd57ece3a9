"""The bits of each kernel, on each class of machine: a change of torch or of a kernel shows here
first.

python tests/models/exact/test_golden_bits.py                             # prints those of this machine,
ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 python …    # and those of an older one
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lockstep.core.types import SamplingParams
from lockstep.distributed.sampling import token_scores
from lockstep.models.exact.attention import BlockwiseKernel
from lockstep.models.exact.linear import exact_linear, gelu_tanh, silu

_SAME = {
    "linear": "c4cb1f23deceffca6fe9dadd0cc4891e",
    "linear bf16": "9e32adbc72d71100e92b6b0cc4a8c111",
    "silu": "2e677a575edce613a955e9002c424599",
    "gelu": "8e941aadbe855a6cc32af9efdf789921",
    "log-softmax": "6ee639fed2bef8bdf48cb389f728b806",
}
GOLDEN: dict[str, dict[str, str]] = {
    "torch 2.13.0+cpu, AuthenticAMD AVX512": {
        **_SAME,
        "attention": "c75146eaf50fe754cde142a7e440af99",
        "attention, window": "31037762ec5679745fa910707da7d801",
        "attention, cap": "f4778032bbaac7e232d5da1ca11b4951",
        "attention, sinks": "13378cd163c7665d004ad49a92381436",
    },
    "torch 2.13.0+cpu, AuthenticAMD AVX2": {
        **_SAME,
        "attention": "a8654dafc1e9fc9a6e59442f32a49eb8",
        "attention, window": "934953bb6b3affc7d4134928b342d712",
        "attention, cap": "94b221ba1a6107ca6d06a0786b1ef454",
        "attention, sinks": "9754c0813e919c861dc18077e66bff1a",
    },
    "torch 2.13.0+cpu, GenuineIntel AVX512": {
        "linear": "c4cb1f23deceffca6fe9dadd0cc4891e",
        "linear bf16": "9e32adbc72d71100e92b6b0cc4a8c111",
        "silu": "efc61e27bb84096fc0320fa121e1830a",
        "gelu": "1c2d2c795ef43b7b0d2b3b4662fbfb1e",
        "log-softmax": "746e93fde33d4a9bca1210b7a7ff6e9b",
        "attention": "c75146eaf50fe754cde142a7e440af99",
        "attention, window": "31037762ec5679745fa910707da7d801",
        "attention, cap": "f0707f27e8cbcecb4464a53cc0351cba",
        "attention, sinks": "13378cd163c7665d004ad49a92381436",
    },
    "torch 2.13.0+cpu, GenuineIntel AVX2": {
        **_SAME,
        "silu": "5288c2f94d495642b490f04ff1c62533",
        "attention": "a8654dafc1e9fc9a6e59442f32a49eb8",
        "attention, window": "934953bb6b3affc7d4134928b342d712",
        "attention, cap": "94b221ba1a6107ca6d06a0786b1ef454",
        "attention, sinks": "9754c0813e919c861dc18077e66bff1a",
    },
}
"""By torch, maker of the processor and its vectors: 16 numbers wide, a softmax has other sums than
8 numbers wide.
"""

OLDER = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
"""Makes kernels of a process those of a machine without AVX-512."""


def name_class() -> str:
    """The class of this machine: what its kernels depend on."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    makers = [line.split()[-1] for line in lines if line.startswith("vendor_id")]
    return (
        f"torch {torch.__version__}, {(makers or [platform.machine()])[0]} "
        f"{torch.backends.cpu.get_cpu_capability()}"
    )


def grid(*shape: int, step: int) -> Tensor:
    """Numbers from −2 to 2 that no generator draws; 251 is odd, or sums would be whole in any
    order.
    """
    return ((torch.arange(torch.Size(shape).numel()) * step) % 1021 - 510).view(shape) / 251


def compute(kernel: str) -> Tensor:
    x, weight = grid(19, 96, step=7), grid(160, 96, step=11) / 8
    match kernel:
        case "linear":
            return exact_linear(x, weight, grid(160, step=5))
        case "linear bf16":
            return exact_linear(x.bfloat16(), weight.bfloat16())
        case "silu":
            return silu(x)
        case "gelu":
            return gelu_tanh(x)
        case "log-softmax":
            logits = exact_linear(x, grid(5000, 96, step=13) / 8)
            return token_scores(
                logits, torch.arange(19), SamplingParams(1, temperature=0.7), row_invariant=True
            )[0]
        case _:
            cap, sinks = 2.0 if kernel == "attention, cap" else None, grid(4, step=3)
            window = 40 if kernel == "attention, window" else None
            q, k, v = (
                grid(2, heads, 150, 32, step=step) for heads, step in ((4, 7), (2, 11), (2, 17))
            )
            return BlockwiseKernel(
                cap, sinks if kernel == "attention, sinks" else None
            ).attend_causally(q, k, v, 0.2, window)


KERNELS = (
    "linear", "linear bf16", "silu", "gelu", "log-softmax",
    "attention", "attention, window", "attention, cap", "attention, sinks",
)  # fmt: skip


def fingerprint(kernel: str) -> str:
    """The first half of the SHA-256 of a kernel's bits."""
    return hashlib.sha256(
        compute(kernel).contiguous().view(torch.uint8).numpy().tobytes()
    ).hexdigest()[:32]


@pytest.mark.parametrize("kernel", KERNELS)
def test_exact_kernel_output_matches_recorded_bits(kernel: str) -> None:
    if name_class() not in GOLDEN:
        pytest.skip(f"no bits are noted for {name_class()}")
    assert fingerprint(kernel) == GOLDEN[name_class()][kernel]


@pytest.mark.full
@pytest.mark.skipif(
    "AVX512" not in name_class(), reason="this machine cannot stand for an older one"
)
def test_avx2_restricted_process_is_exact_and_matches_recorded_bits() -> None:
    files = [__file__, str(Path(__file__).with_name("test_exact_model.py"))]
    chosen = (
        "-k",
        "matches_recorded_bits or same_bits_sampled",
        "-m",
        "not full",
        "-p",
        "no:cacheprovider",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *files, *chosen]
    done = subprocess.run(
        command, env=os.environ | OLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "skipped" not in done.stdout


def show() -> str:
    """The bits of this machine, as `GOLDEN` holds them."""
    rows = [f'        "{kernel}": "{fingerprint(kernel)}",' for kernel in KERNELS]
    return "\n".join([f'    "{name_class()}": {{', *rows, "    },"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(show())
