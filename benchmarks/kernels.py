"""Log-probabilities by Triton's kernels on a GPU: milliseconds of a step, beside PyTorch, Liger and cut-cross-entropy.

    python -m benchmarks.kernels [--rows 8192] [--vocab 151936] [--hidden 4096] [--save]

A step is forward and backward, in bf16, from logits and from hidden states; Liger and cut-cross-entropy are measured
where they are installed. Milliseconds are medians of the GPU's own clock. `LOG.md` has figures of one H100.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import environment, save
from lockstep_logprobs import hidden_logprobs, vocab_logprobs
from lockstep_logprobs.kernel import runs_fused

REPEATS, WARMUP = 20, 3


@dataclass(frozen=True)
class KernelFigure:
    """A row of the table: one way of one case.

    Attributes:
        case: What is computed.
        way: By whose functions.
        ms: Median milliseconds.
    """

    case: str
    way: str
    ms: float


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
    torch.manual_seed(0)
    options = {"device": device, "dtype": torch.bfloat16}
    logits = torch.randn(asked.rows, asked.vocab, **options).mul_(3.0)
    states = torch.randn(asked.rows, asked.hidden, **options)
    head = torch.randn(asked.vocab, asked.hidden, **options).mul_(3.0 * asked.hidden**-0.5)
    token = torch.randint(asked.vocab, (asked.rows, 1), device=device)
    cases = {
        "from logits": step_from_logits(logits, token),
        "from hidden states": step_from_hidden(states, head, token),
    }
    where = f"{torch.cuda.get_device_name()}, {environment()}"
    print(f"{where}\n\n| {asked.rows} × {asked.vocab}, bf16 | by | ms |\n|---|---|---:|")
    found = list[KernelFigure]()
    for case, ways in cases.items():
        for way, function in ways.items():
            found.append(KernelFigure(case, way, time_ms(function)))
            print(f"| {case} | {way} | {found[-1].ms:.3f} |", flush=True)
    if asked.save:
        details = {"rows_of_logits": asked.rows, "vocab": asked.vocab, "hidden": asked.hidden}
        print(save("kernels", where, found, details))


if __name__ == "__main__":
    main()
