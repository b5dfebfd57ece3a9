"""CPU ms of each phase of a step beside its floor: the step's own matrix products, alone.

    python -m benchmarks.floor --prompts 256 --prompt-tokens 24 --new-tokens 16 --minibatches 2 --hidden 64 --vocab 256
    python -m benchmarks.floor --hidden 512 --layers 8 --steps 4 --warmup 1 [--exact] [--algorithm grpo]

A step is that of `benchmarks.lockstep_ppo` or `benchmarks.lockstep_group`, on one thread. The products of one step are
noted, by operation, shapes and strides, and made again behind each of the others, on operands of their own: in turn, so
that a busy machine slows both. Their operands are warmer than a step's, and torch's own attention is not among them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import lockstep_group, lockstep_ppo
from lockstep.process_defaults import keep_freed_memory

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_REST = "rest of the step"

Operand = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides."""

Product = tuple[str, Operand, Operand]
"""Operation of two operands."""


@dataclass
class PhaseClock:
    """CPU seconds of each phase; what lies inside of another counts there no longer.

    Attributes:
        spent: Seconds of the phases of a step.
        open: Phases that have begun, the innermost last.
    """

    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    open: list[str] = field(default_factory=lambda: [_REST])
    _since: float = field(default_factory=time.process_time)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.turn()
        self.open.append(name)
        try:
            yield
        finally:
            self.turn()
            self.open.pop()

    def turn(self) -> None:
        """Gives the time since the last call to the innermost phase."""
        now = time.process_time()
        self.spent[self.open[-1]] += now - self._since
        self._since = time.process_time()


class Products(TorchDispatchMode):
    """Notes the matrix products of each phase.

    Attributes:
        seen: Numbers of products, by phase.
    """

    def __init__(self, clock: PhaseClock) -> None:
        super().__init__()
        self.seen: dict[str, Counter[Product]] = defaultdict(Counter)
        self._clock = clock

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        if name in _PRODUCTS:
            a, b = (x for x in args if isinstance(x, Tensor)) if "add" not in name else args[1:3]
            operands = (tuple(a.shape), a.stride()), (tuple(b.shape), b.stride())
            self.seen[self._clock.open[-1]]["mm" if a.dim() == 2 else "bmm", *operands] += 1
        return func(*args, **(kwargs or {}))


class Replay:
    """The products of a step on operands of their own, to be made again beside each step.

    Args:
        seen: Numbers of products, by phase.
    """

    def __init__(self, seen: Mapping[str, Counter[Product]]) -> None:
        self._seen = {name: dict(counted) for name, counted in seen.items()}
        kinds = {product for counted in self._seen.values() for product in counted}
        self._calls = {product: _prepare(product) for product in kinds}

    def __call__(self) -> dict[str, float]:
        """CPU seconds of the products of each phase."""
        return {name: sum(map(self._time, *zip(*counted.items(), strict=True))) for name, counted in self._seen.items()}

    def _time(self, product: Product, count: int) -> float:
        call, start = self._calls[product], time.process_time()
        for _ in range(count):
            call()
        return time.process_time() - start


def _prepare(product: Product) -> Callable[[], object]:
    """One product, with memory for what comes out."""
    name, *operands = product
    a, b = (torch.empty_strided(shape, stride).normal_() for shape, stride in operands)
    multiply: Callable[..., Tensor] = torch.mm if name == "mm" else torch.bmm
    out = multiply(a, b)
    return lambda: multiply(a, b, out=out)


def measure_phases(args: argparse.Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds of each phase of a step, and those of its products, made in turn; medians of some steps."""
    clock = PhaseClock()
    make = lockstep_ppo.step_of if args.algorithm == "ppo" else lockstep_group.step_of
    with tempfile.TemporaryDirectory() as folder:
        step, _ = make(Path(folder), args, clock)
        for number in range(args.warmup):
            step(number)
        with Products(clock) as products:
            step(args.warmup)
        replay, steps, floors = Replay(products.seen), list[dict[str, float]](), list[dict[str, float]]()
        replay()
        for number in range(args.warmup + 1, args.warmup + 1 + args.steps):
            clock.turn()
            clock.spent.clear()
            step(number)
            clock.turn()
            steps.append(dict(clock.spent))
            floors.append(replay())
    return _medians(steps), _medians(floors)


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in found) for name in found[-1]}


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    parser = lockstep_ppo.arguments(__doc__)
    parser.add_argument("--algorithm", choices=("ppo", *lockstep_group.GROUPED, "distill"), default="ppo")
    parser.add_argument("--generations", type=int, default=8, help="responses to a prompt; all are --prompts")
    parser.set_defaults(steps=8)
    args = parser.parse_args()
    taken, floor = measure_phases(args)
    print("| phase | CPU ms | products alone, ms | × |\n|---|---:|---:|---:|")
    for name in sorted(taken, key=lambda name: -taken[name]):
        print(_row(name, taken[name], floor.get(name, 0.0)))
    print(_row("**the step**", sum(taken.values()), sum(floor.values())), flush=True)


def _row(name: str, taken_s: float, floor_s: float) -> str:
    times = f"{taken_s / floor_s:.2f}" if floor_s else "–"
    return f"| {name} | {1e3 * taken_s:.1f} | {1e3 * floor_s:.1f} | {times} |"


if __name__ == "__main__":
    main()
