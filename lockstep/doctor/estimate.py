"""Time and memory of a table, said before it begins: from the model's sizes, the grid's bounds and a few timed passes.

    pass of T tokens     o + n(T) / r seconds,  n(T) = T · (2 · weights of a token + 2 · layers · queries · T)
    decoding step        s(b) + b · 2 · layers · queries · length / r seconds,  b rows side by side
    cell                 steps of each drawer, after a pass over the text before them; then, for each sequence that is
                         rescored and each kind of score, a pass of every backend and two of the witness per type; the
                         shortest cells are asked again
    memory               what is held once passes were timed, which opens every model; beside it logits of a pass and
                         attention's weights of a chunk, or keys and values of the largest batch, which plain
                         transformers copies at each step

o, r and s(b) are measured: passes of 16 and of 512 tokens, and 8 steps at each batch size.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from timeit import timeit

import torch

from lockstep import keyed
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import CHUNK
from lockstep.doctor.base import Backend, Conditions
from lockstep.doctor.measure import REPEATED, Bench, floor_conditions
from lockstep.doctor.plan import ROOM, Cell, count_sequences, rescore_limit
from lockstep.plan.sizes import Sizes
from lockstep.types import Request, SamplingParams
from lockstep.units import readable

_SHORT, _LONG, _STEPS = 16, 512, 8
_FP32 = 4


@dataclass(frozen=True)
class Speed:
    """The measured rates of a backend.

    Attributes:
        overhead: Seconds of a pass besides its operations.
        rate: Operations per second.
        steps: Seconds of a decoding step at a short context, by rows side by side; empty where it does not generate.
    """

    overhead: float
    rate: float
    steps: Mapping[int, float]

    def pass_s(self, sizes: Sizes, tokens: int) -> float:
        """Seconds of a pass over one sequence."""
        return self.overhead + count_operations(sizes, tokens) / self.rate

    def step_s(self, sizes: Sizes, rows: int, length: int) -> float:
        """Seconds of a decoding step in the middle of responses."""
        return self.steps[rows] + rows * 2 * sizes.layers * sizes.queries * length / self.rate


@dataclass(frozen=True)
class TableEstimate:
    """Cost of a table.

    Attributes:
        memory: Bytes that this process, or its GPU, holds at most.
    """

    seconds: float
    memory: int

    @property
    def sentence(self) -> str:
        """The figures in words."""
        return f"predicted: {self.seconds / 60:.1f} minutes, {readable(self.memory)} here"


def count_operations(sizes: Sizes, tokens: int) -> float:
    """Operations of a pass over one sequence."""
    weights = sizes.layers * sizes.products + (sizes.head or sizes.table)
    return tokens * (2 * weights + 2 * sizes.layers * sizes.queries * tokens)


@dataclass(frozen=True)
class TableCost:
    """Cost of cells, by measured speeds.

    Attributes:
        speeds: Of the backends, by name.
        floor: Of the witness's passes, two for each type.
    """

    bench: Bench
    speeds: Mapping[str, Speed]
    floor: Sequence[Speed]
    sizes: Sizes

    @classmethod
    def measure(cls, bench: Bench, sizes: Sizes) -> TableCost:
        """Measures all speeds, which opens every model."""
        rows = bench.grid.batch_sizes
        speeds = {name: measure_speed(backend, sizes, rows) for name, backend in bench.backends.items()}
        asked = [conditions for dtype in sorted(set(bench.dtypes.values())) for conditions in floor_conditions(dtype)]
        return cls(bench, speeds, [measure_speed(bench.witness, sizes, (), one) for one in asked], sizes)

    def estimate(self, cells: Sequence[Cell]) -> TableEstimate:
        """Sums up cells."""
        seconds = sum(self.count_seconds(cell, count_sequences(cell, self.bench.grid)) for cell in cells)
        return TableEstimate(seconds, peak_bytes() + self.count_bytes(cells))

    def count_seconds(self, cell: Cell, count: int) -> float:
        """Seconds of a cell with so many sequences."""
        grid, sizes, speeds, seconds = self.bench.grid, self.sizes, self.speeds, 0.0
        rescored, repeated = min(count, rescore_limit(cell, grid)), min(REPEATED, cell.decoded)
        steps = {name: speeds[name].step_s(sizes, cell.batch_size, cell.length) for name in self.bench.generating}
        for drawer in self.bench.drawers(cell):
            scorers = self.bench.scorers(cell.sampling, drawer)
            passes = [speeds[name] for names in scorers.values() for name in names] + [*self.floor] * len(scorers)
            seconds += math.ceil(count / cell.batch_size) * cell.decoded * steps[drawer]
            seconds += rescored * sum(speed.pass_s(sizes, cell.length) for speed in passes)
            seconds += rescored * speeds[drawer].pass_s(sizes, cell.beginning) if cell.beginning else 0.0
        if cell.length == min(grid.lengths):
            for name, step_s in steps.items():
                again = repeated * step_s + cell.batch_size * speeds[name].pass_s(sizes, repeated)
                seconds += grid.repeats * again
        return seconds

    def count_bytes(self, cells: Sequence[Cell]) -> int:
        """Bytes beside the weights that this process holds at most; those of engines and of other ranks are theirs."""
        grid, sizes, longest = self.bench.grid, self.sizes, max((cell.length for cell in cells), default=1)
        tokens = max(longest, min(grid.pass_tokens, max(grid.batch_sizes) * longest))
        numbers = 2 * sizes.vocabulary + 4 * sizes.hidden
        passed = _FP32 * (tokens * numbers + 5 * sizes.heads * min(CHUNK, longest) * longest)
        drawn = [
            cell.batch_size * cell.decoded + min(cell.batch_size, rescore_limit(cell, grid)) * cell.beginning
            for cell in cells
            for name in self.bench.drawers(cell)
            if self.bench.backends[name].network is not None
        ]
        return max(passed, 2 * _FP32 * sizes.cache * max(drawn, default=0))


def measure_speed(backend: Backend, sizes: Sizes, rows: Sequence[int], conditions: Conditions | None = None) -> Speed:
    """Times passes of two lengths, and steps at some batch sizes where the backend generates."""
    asked = conditions or Conditions()
    short, long = (min(tokens, backend.context - ROOM) for tokens in (_SHORT, _LONG))
    backend.score(_sequence(short, sizes), asked)  # opens models and kernels
    seconds = {
        tokens: timeit(partial(backend.score, _sequence(tokens, sizes), asked), number=1) for tokens in (short, long)
    }
    more = count_operations(sizes, long) - count_operations(sizes, short)
    rate = max(more, 1.0) / max(seconds[long] - seconds[short], 1e-6)
    steps = dict[int, float]()
    for size in rows if "generate" in backend.capabilities else ():
        requests = [Request((0,), keyed.key("estimate", row)) for row in range(size)]
        beside = Conditions(batch_size=size)
        sampling = SamplingParams(min(_STEPS, backend.context - 1))
        backend.generate(requests, SamplingParams(1), beside)
        steps[size] = timeit(partial(backend.generate, requests, sampling, beside), number=1) / sampling.max_tokens
    return Speed(max(0.0, seconds[short] - count_operations(sizes, short) / rate), rate, steps)


def peak_bytes() -> int:
    """Most bytes that this process has held so far, and its GPU."""
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + on_gpu


def _sequence(tokens: int, sizes: Sizes) -> Batch:
    ids = torch.arange(tokens) * 7 % sizes.vocabulary
    return Batch(ids, torch.tensor([tokens]), {"mask": torch.arange(tokens) > 0})
