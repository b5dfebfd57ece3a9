"""The measurement of one piece of work for `benchmarks.logprobs`: time, peak memory and collectives, both passes."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import MemoryGrowth

COLLECTIVES = {
    "allreduce_": "AR",
    "allgather_": "AG",
    "_allgather_base_": "AG",
    "_reduce_scatter_base_": "RS",
    "reduce_scatter_": "RS",
    "alltoall_base_": "A2A",
}
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}
"""Operators after which a program on a GPU waits for it: they hand a number, or a shape, to the host."""

Forward = Callable[[], Sequence[Tensor]]


@dataclass
class Work:
    """One kernel on one rank's inputs.

    Attributes:
        leaves: Inputs that receive a gradient.
        ways: Functions that compute the same, by name; "Lockstep" and "naive" among them.
        tolerance: Largest difference of the ways, relative to the largest number, in results and in gradients.
        products: The matrix products in it, alone: those of forward, those of backward.
    """

    leaves: list[Tensor]
    ways: Mapping[str, Forward]
    tolerance: float = 1e-4
    products: tuple[Callable[[], object], Callable[[], object]] | None = None


@dataclass(frozen=True)
class Counts:
    """Counts of one way.

    Attributes:
        forward: Collectives of forward, by kind.
        backward: Collectives of backward, by kind.
        waits: Number of waits of the host for a GPU, forward and backward.
    """

    forward: dict[str, int] = field(default_factory=dict)
    backward: dict[str, int] = field(default_factory=dict)
    waits: int = 0


@dataclass
class Figures:
    """Figures of one way. Seconds are medians; bytes are those above inputs and upstream gradients.

    Attributes:
        forward_s: CPU seconds of forward; on a GPU its own seconds.
        backward_s: The same of backward.
        forward_bytes: Peak during forward.
        total_bytes: Peak during forward and backward, with the inputs' gradients.
        gradient_bytes: The inputs' gradients.
        counts: Collectives and waits.
    """

    forward_s: float
    backward_s: float
    forward_bytes: float = 0.0
    total_bytes: float = 0.0
    gradient_bytes: int = 0
    counts: Counts = field(default_factory=Counts)

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


def read(written: dict[str, Any]) -> Figures:
    """Restores figures from `dataclasses.asdict`."""
    return Figures(**{**written, "counts": Counts(**written["counts"])})


class Counted(TorchDispatchMode):
    """Counts collectives and operators that wait for the device while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.collectives: Counter[str] = Counter()
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket.__name__)
        if func.namespace == "c10d" and name != "barrier":
            self.collectives[COLLECTIVES.get(name, name)] += 1
        self.waits += name in WAITING
        return func(*args, **(kwargs or {}))


def products(rows: int, weight_vD: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """The matrix products of a head: the logits; the logits again and both gradients. Their memory is there before."""
    weight_vD = weight_vD.detach()
    hidden_MD = weight_vD.new_empty(rows, weight_vD.shape[1]).normal_()
    logits_Mv = weight_vD.new_zeros(rows, len(weight_vD))
    of_hidden, of_weight = torch.empty_like(hidden_MD), torch.empty_like(weight_vD)

    def forward() -> None:
        torch.mm(hidden_MD, weight_vD.t(), out=logits_Mv)

    def backward() -> None:
        forward()
        torch.mm(logits_Mv, weight_vD, out=of_hidden)
        torch.mm(logits_Mv.t(), hidden_MD, out=of_weight)

    return forward, backward


def measure_work(
    work: Work, device: torch.device, repeats: int, together: Callable[[], object] = lambda: None
) -> dict[str, Figures]:
    """Measures all ways in turn, and the matrix products alone as "products".

    Args:
        work: The work to measure.
        device: Device of the work.
        repeats: Repetitions of the timing; memory and collectives have one run each of their own.
        together: Waits for the other ranks.

    Raises:
        RuntimeError: The ways give other numbers or other gradients.
    """
    upstream, counted = _counted(work)
    seconds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeats):
        for name, forward in work.ways.items():
            seconds.setdefault(name, []).append(_timed(work, forward, upstream, device, together))
        if work.products is not None:
            forward_s, backward_s = (_clocked(product, device)[1] for product in work.products)
            seconds.setdefault("products", []).append((forward_s, backward_s))
    figures = {name: Figures(*map(statistics.median, zip(*seen, strict=True))) for name, seen in seconds.items()}
    for name, forward in work.ways.items():
        together()
        _fill_memory(figures[name], work, forward, upstream, device)
        figures[name].counts = counted[name]
    return figures


def _counted(work: Work) -> tuple[list[Tensor], dict[str, Counts]]:
    """Runs every way once and compares them.

    Returns:
        An upstream gradient for each result that wants one, on all ranks the same, as the results are; and each way's
        counts.
    """
    upstream: list[Tensor] = []
    expected: list[Tensor] = []
    counts: dict[str, Counts] = {}
    for name, forward in work.ways.items():
        with Counted() as forth:
            out = forward()
        torch.manual_seed(0)
        upstream = upstream or [torch.randn_like(x) for x in out if x.requires_grad]
        with Counted() as back:
            _backward(out, upstream)
        counts[name] = Counts(dict(forth.collectives), dict(back.collectives), forth.waits + back.waits)
        seen = [x.detach() for x in out] + [leaf.grad for leaf in work.leaves if leaf.grad is not None]
        _forget(work)
        expected = expected or seen
        _compare(name, seen, expected, work.tolerance)
    return upstream, counts


def _compare(name: str, seen: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(seen, expected, strict=True):
        difference = float((a.float() - b.float()).abs().max() / b.float().abs().max())
        if not difference <= tolerance:
            raise RuntimeError(f"{name} differs by {difference:.1e}, so its figures cannot be compared")


def _timed(
    work: Work, forward: Forward, upstream: list[Tensor], device: torch.device, together: Callable[[], object]
) -> tuple[float, float]:
    """Seconds of one forward and one backward pass."""
    together()
    out, forward_s = _clocked(forward, device)
    together()
    _, backward_s = _clocked(lambda: _backward(out, upstream), device)
    _forget(work)
    return forward_s, backward_s


def _clocked(fn: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """The result of `fn`, and its seconds: CPU time of this process, or time of the GPU."""
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        out = fn()
        end.record()
        torch.cuda.synchronize(device)
        return out, start.elapsed_time(end) / 1e3
    start_s = time.process_time()
    out = fn()
    return out, time.process_time() - start_s


def _fill_memory(figures: Figures, work: Work, forward: Forward, upstream: list[Tensor], device: torch.device) -> None:
    memory = MemoryGrowth(device)
    out = forward()
    figures.forward_bytes = memory.peak()
    _backward(out, upstream)
    figures.total_bytes = memory.peak()
    figures.gradient_bytes = sum(leaf.nbytes for leaf in work.leaves)
    _forget(work)


def _backward(out: Sequence[Tensor], upstream: list[Tensor]) -> None:
    followed = [x for x in out if x.requires_grad]
    if followed:
        torch.autograd.backward(followed, upstream)


def _forget(work: Work) -> None:
    for leaf in work.leaves:
        leaf.grad = None
