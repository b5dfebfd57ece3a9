"""The measurement of one piece of work for `benchmarks.logprobs`: time and peak memory of both
passes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import MemoryGrowth

Forward = Callable[[], Sequence[Tensor]]


@dataclass
class Work:
    """One kernel on one rank's inputs.

    Attributes:
        leaves: Inputs that receive a gradient.
        ways: Functions that compute the same, by name; "Lockstep" and "naive" among them.
        tolerance: Largest difference of the ways, relative to the largest number, in results and in
            gradients.
    """

    leaves: list[Tensor]
    ways: Mapping[str, Forward]
    tolerance: float = 1e-4


@dataclass
class Figures:
    """Figures of one way. Seconds are medians; bytes are those above inputs and upstream gradients.

    Attributes:
        forward_s: CPU seconds of forward.
        backward_s: The same of backward.
        total_bytes: Peak during forward and backward, with the inputs' gradients.
    """

    forward_s: float
    backward_s: float
    total_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


def measure_work(
    work: Work, repeats: int, together: Callable[[], object] = lambda: None
) -> dict[str, Figures]:
    """Measures all ways in turn.

    Args:
        work: The work to measure.
        repeats: Repetitions of the timing; memory has a run of its own.
        together: Waits for the other ranks.

    Raises:
        RuntimeError: The ways give other numbers or other gradients.
    """
    upstream = _compare_ways(work)
    seconds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeats):
        for name, forward in work.ways.items():
            seconds.setdefault(name, []).append(_timed(work, forward, upstream, together))
    figures = {
        name: Figures(*map(statistics.median, zip(*seen, strict=True)))
        for name, seen in seconds.items()
    }
    for name, forward in work.ways.items():
        together()
        memory = MemoryGrowth()
        _backward(forward(), upstream)
        figures[name].total_bytes = memory.peak()
        _forget(work)
    return figures


def _compare_ways(work: Work) -> list[Tensor]:
    """Runs every way once and compares them.

    Returns:
        An upstream gradient for each result that wants one, on all ranks the same, as the results
        are.
    """
    upstream: list[Tensor] = []
    expected: list[Tensor] = []
    for name, forward in work.ways.items():
        out = forward()
        torch.manual_seed(0)
        upstream = upstream or [torch.randn_like(x) for x in out if x.requires_grad]
        _backward(out, upstream)
        seen = [x.detach() for x in out] + [
            leaf.grad for leaf in work.leaves if leaf.grad is not None
        ]
        _forget(work)
        expected = expected or seen
        _compare(name, seen, expected, work.tolerance)
    return upstream


def _compare(name: str, seen: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(seen, expected, strict=True):
        difference = float((a.float() - b.float()).abs().max() / b.float().abs().max())
        if not difference <= tolerance:
            raise RuntimeError(
                f"{name} differs by {difference:.1e}, so its figures cannot be compared"
            )


def _timed(
    work: Work,
    forward: Forward,
    upstream: list[Tensor],
    together: Callable[[], object],
) -> tuple[float, float]:
    """Seconds of one forward and one backward pass."""
    together()
    out, forward_s = _clocked(forward)
    together()
    _, backward_s = _clocked(lambda: _backward(out, upstream))
    _forget(work)
    return forward_s, backward_s


def _clocked(fn: Callable[[], Any]) -> tuple[Any, float]:
    """The result of `fn`, and the CPU seconds of this process."""
    start_s = time.process_time()
    out = fn()
    return out, time.process_time() - start_s


def _backward(out: Sequence[Tensor], upstream: list[Tensor]) -> None:
    followed = [x for x in out if x.requires_grad]
    if followed:
        torch.autograd.backward(followed, upstream)


def _forget(work: Work) -> None:
    for leaf in work.leaves:
        leaf.grad = None
