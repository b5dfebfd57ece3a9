"""Triton's kernels on a GPU: the share of its bandwidth, or of its matrix products' rate, that each reaches.

    python -m benchmarks.kernels [--rows 8192] [--vocab 151936] [--hidden 4096] [--save]

Beside each kernel stand the passes in PyTorch's operations that it replaces, and for a whole step (forward and
backward) PyTorch's `cross_entropy` and, where they are installed, Liger and cut-cross-entropy. Bandwidth is what a copy
from the GPU to itself moves in the same run, read and written; a kernel's bytes are those of its logits, each counted
once per pass that cannot be avoided: a sum reads them, a gradient reads and writes them. So a kernel that reads its
logits twice cannot reach more than half. Kernels that multiply are measured by the rate of one large product of the
same type. Milliseconds are medians of the GPU's own clock.

`LOG.md` has figures of one H100.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import statistics
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import environment, save
from lockstep_logprobs import Scoring, hidden, hidden_logprobs, support, vocab, vocab_logprobs
from lockstep_logprobs.gradient import RowGradient
from lockstep_logprobs.kernel import load_fused, runs_fused

REPEATS, WARMUP = 20, 3
TOP_K, TOP_P = 50, 0.95


@dataclass(frozen=True)
class Case:
    """One computation, several ways.

    Attributes:
        name: What is computed.
        ways: Functions that compute it, by name.
        bytes: Bytes that have to move, at least; 0 for what multiplies.
        products: Multiplications and additions of its matrix products.
    """

    name: str
    ways: Mapping[str, Callable[[], object]]
    bytes: int = 0
    products: float = 0.0


@dataclass(frozen=True)
class KernelFigure:
    """A row of the table: one way of one case.

    Attributes:
        case: What is computed.
        way: By whose functions.
        ms: Median milliseconds.
        share: Of bandwidth, or of the rate of products.
    """

    case: str
    way: str
    ms: float
    share: float


def both(function: Any, *args: object) -> dict[str, Callable[[], object]]:
    """A pass as Triton's kernel, and as the operations that it replaces."""
    return {"Triton": lambda: function(*args), "eager": lambda: inspect.unwrap(function)(*args)}


def build_cases(device: torch.device, rows: int, columns: int, depth: int) -> list[Case]:
    """All computations, in bf16, on random numbers of the size that a model's logits have."""
    torch.manual_seed(0)
    logits = torch.randn(rows, columns, device=device, dtype=torch.bfloat16).mul_(3.0)
    token = torch.randint(columns, (rows, 1), device=device)
    scoring = Scoring(entropy=True)
    row = RowGradient.of(
        vocab.score(logits, token, scoring),
        scoring,
        None,
        torch.ones(rows, 1, device=device),
        torch.ones(rows, device=device),
    )
    once, rate = logits.numel() * logits.itemsize, 2.0 * rows * columns * depth
    return [
        Case(
            "sums, picked token, entropy", both(vocab._row_sums, logits, token, None, 0, 1.0, True, None, False), once
        ),
        Case("gradient", both(vocab._logits_gradient, logits, *row.tensors, 1.0, 0, None), 2 * once),
        Case(f"top-k {TOP_K}", both(support._whole_floor, logits, TOP_K, 1.0, 1.0, None), once),
        Case(f"top-p {TOP_P}", both(support._whole_floor, logits, 0, TOP_P, 1.0, None), once),
        Case("log-probability, a step", step_from_logits(logits, token), 3 * once),
        *cases_from_hidden(device, rows, columns, depth, token, rate),
    ]


def cases_from_hidden(
    device: torch.device, rows: int, columns: int, depth: int, token: Tensor, rate: float
) -> list[Case]:
    """Those that multiply the logits out: the passes one by one, and a step."""
    half = torch.bfloat16 if device.type == "cuda" else torch.float16  # the interpreter has no products of bf16
    states = torch.randn(rows, depth, device=device, dtype=half)
    head = torch.randn(columns, depth, device=device, dtype=half).mul_(3.0 * depth**-0.5)
    scoring = Scoring()
    row = RowGradient.of(
        hidden.score(states, head, token, scoring), scoring, None, torch.ones(rows, 1, device=device), None
    )
    piece = head[: 2**14]
    tiles = {"Triton": load_fused("hidden", "gradient_tiles"), "eager": hidden._gradient_tiles}
    write = {
        name: lambda write=function: deque(write(states, piece, row, 0, None), maxlen=0)
        for name, function in tiles.items()
    }
    sums = both(hidden._hidden_row_sums, states, head, token, 0, 1.0, False, None, False)
    return [
        Case("sums from hidden states", sums, products=rate),
        Case("gradient of logits from hidden states", write, products=rate * len(piece) / columns),
        Case("log-probability from hidden states, a step", step_from_hidden(states, head, token), products=4 * rate),
    ]


def step_from_logits(logits: Tensor, token: Tensor) -> dict[str, Callable[[], object]]:
    """Forward and backward, log p of one token per row."""
    leaf, target = logits.detach().requires_grad_(), token[:, 0]

    def backward(loss: Tensor) -> None:
        leaf.grad = None
        loss.sum().backward()

    ways: dict[str, Callable[[], object]] = {
        "Triton": lambda: backward(vocab_logprobs(leaf, token)[0]),
        "PyTorch": lambda: backward(F.cross_entropy(leaf, target, reduction="none")),
    }
    if (liger := import_if_there("liger_kernel.transformers.functional")) is not None:
        # Its forward pass writes the gradient over what it is given, so it is given a copy, whose time counts.
        ways["Liger"] = lambda: backward(liger.liger_cross_entropy(leaf * 1.0, target, reduction="sum"))
    return ways


def step_from_hidden(states: Tensor, head: Tensor, token: Tensor) -> dict[str, Callable[[], object]]:
    """Forward and backward, log p of one token per row; gradients of the states and of the head."""
    states, head, target = states.detach().requires_grad_(), head.detach().requires_grad_(), token[:, 0]

    def backward(loss: Tensor) -> None:
        states.grad = head.grad = None
        loss.sum().backward()

    ways: dict[str, Callable[[], object]] = {
        "Triton": lambda: backward(hidden_logprobs(states, head, token)[0]),
        "PyTorch": lambda: backward(F.cross_entropy(states @ head.t(), target, reduction="none")),
    }
    if (liger := import_if_there("liger_kernel.transformers.functional")) is not None:
        fused = liger.liger_fused_linear_cross_entropy
        ways["Liger"] = lambda: backward(fused(states, head, target, reduction="sum"))
    if (cut := import_if_there("cut_cross_entropy")) is not None:
        ways["cut-cross-entropy"] = lambda: backward(cut.linear_cross_entropy(states, head, target, reduction="none"))
    return ways


def import_if_there(module: str) -> Any:
    """A module of a peer; None where the peer is not installed."""
    return importlib.import_module(module) if importlib.util.find_spec(module.split(".")[0]) else None


def time_ms(function: Callable[[], object]) -> float:
    """The median time on the GPU."""
    for _ in range(WARMUP):
        function()
    seen = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        seen.append(start.elapsed_time(end))
    return statistics.median(seen)


def peaks(device: torch.device) -> tuple[float, float]:
    """Bytes per second of a copy, read and written, and multiplications and additions per second of a bf16 product."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target, square = torch.empty_like(source), torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
    copy_ms, product_ms = time_ms(lambda: target.copy_(source)), time_ms(lambda: square @ square)
    return 2 * source.numel() / copy_ms * 1e3, 2 * 8192**3 / product_ms * 1e3


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("benchmarks.kernels: torch sees no GPU here, so nothing was measured; run it where there is one")
    device = torch.device("cuda")
    if not runs_fused(torch.empty(1, device=device)):
        sys.exit("benchmarks.kernels: triton is not installed, so nothing was measured; pip install triton")
    bandwidth, rate = peaks(device)
    where = f"{torch.cuda.get_device_name()}, {environment()}"
    print(f"{where}\na copy moves {bandwidth / 1e12:.2f} TB/s, a bf16 product runs at {rate / 1e12:.0f} TFLOP/s\n")
    print(f"| {asked.rows} × {asked.vocab}, bf16 | by | ms | % of the copy, or of the product |\n|---|---|---:|---:|")
    found = list[KernelFigure]()
    for case in build_cases(device, asked.rows, asked.vocab, asked.hidden):
        for way, function in case.ways.items():
            ms = time_ms(function)
            share = (case.bytes / bandwidth + case.products / rate) / ms * 1e3
            found.append(KernelFigure(case.name, way, ms, share))
            print(f"| {case.name} | {way} | {ms:.3f} | {100 * share:.1f} |", flush=True)
    if asked.save:
        details = {"rows_of_logits": asked.rows, "vocab": asked.vocab, "hidden": asked.hidden}
        print(save("kernels", where, found, details | {"bandwidth": bandwidth, "rate": rate}))


if __name__ == "__main__":
    main()
