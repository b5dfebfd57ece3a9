"""Memory and time of `lockstep doctor locate`, said before they are spent, and kept to.

    weights      of both engines: a learner's in fp32, all others' in the type in which they compute; those of plain
                 `transformers` in the type of their files, and of one block in float64: the largest layer, and all that
                 is outside of layers
    values       what is seen at the cuts: twice of both engines and of plain `transformers`, and of float64; of the
                 weights of a block, a copy for each engine whose operators read them
    logits       five of a sequence in fp32, and two in float64
    again        both engines in fp32, where they disagree and are measured under another setting

An engine of other processes has memory of its own beside its weights, such as vLLM's cache.

    pass         measured on the longest request for each engine when it is open. One that is not open yet takes as long
                 as the slowest, for each sequence in its row; by decoding, as long as a short pass for each token
    comparison   every request by both engines; of the one that differs most, both once more, two passes in float64 and
                 four in the engines' types
    place        where they disagree, at most so many passes more: most find the smallest request

What does not fit into `grid.budget_s` is left out: half of the requests, down to one; then comparisons, the last first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep import machine_memory
from lockstep.batch import Batch
from lockstep.doctor.estimate import peak_bytes
from lockstep.doctor.locate_engines import EngineChoice, EnginePair
from lockstep.errors import InputError
from lockstep.models.folder import read_config, skeleton
from lockstep.plan.sizes import Sizes
from lockstep.units import readable
from lockstep_doctor.hf import find_blocks, read_type
from lockstep_doctor.tap import Tap

_FP32, _FP64 = 4, 8
_VALUES, _LOGITS = 5, 5
_SHORT = 2
_FLOOR, _PLACE = (1, 1, 2, 4), (50, 70, 25, 0)
"""Passes of reference, other engine, float64 and the engines' types that tell a gap from rounding, and those, at most,
that find and shrink a place."""


@dataclass(frozen=True)
class LocateEstimate:
    """Memory of a pair of engines.

    Attributes:
        weights: Bytes of all weights.
        values: Bytes beside them.
        here: Bytes that this process holds before.
        again: Bytes of both engines beside themselves, under another setting.
    """

    weights: int
    values: int
    here: int
    again: int

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.weights + self.values + self.here

    @property
    def sentence(self) -> str:
        """The figures in words."""
        more = f"; {readable(self.again)} more to measure other settings where two engines disagree"
        return f"predicted: {readable(self.total)}, of which weights {readable(self.weights)}{more}"

    def require(self, free: int) -> None:
        """Refuses what does not fit.

        Args:
            free: Bytes that the machine can still give; 0: it does not say.

        Raises:
            InputError: If it is more.
        """
        needed = self.total - self.here
        if free and needed > free:
            raise InputError(
                f"locate needs {readable(needed)}, and {readable(free)} are free: shorten grid.lengths, "
                "set learner.dtype=bf16, or save the model in bf16"
            )


def estimate_locate(folder: str, engines: Sequence[tuple[bool, torch.dtype]], tokens: int) -> LocateEstimate:
    """Estimates the memory of a pair.

    Args:
        folder: The model's.
        engines: Of each, if it is a learner, and the type in which it computes.
        tokens: Of the longest sequence.
    """
    model = skeleton(read_config(folder), folder)
    sizes = Sizes.of(model)
    count = sum(weight.numel() for weight in model.parameters())
    (_, rest), *layers = [(module, sum(weight.numel() for weight in some)) for module, some in find_blocks(model)]
    block = rest + max(size for _, size in layers)
    weights = sum(count * (_FP32 if learner else dtype.itemsize) for learner, dtype in engines)
    plain = count * read_type(Path(folder)).itemsize + block * _FP64
    width = max(dtype.itemsize for _, dtype in engines)
    layer = 8 * sizes.hidden + 2 * sizes.queries + 4 * sizes.keys + 3 * sizes.intermediate
    values = sizes.layers * layer * (_VALUES * width + _FP64)
    logits = sizes.vocabulary * (_LOGITS * _FP32 + 2 * _FP64)
    beside = tokens * (values + logits) + block * width * len(engines)
    return LocateEstimate(weights + plain, beside, peak_bytes(), count * _FP32 * len(engines))


def free_bytes(device: torch.device) -> int:
    """Bytes that a device can still give; 0: it does not say."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine_memory.free_bytes()


class LocateTime:
    """The time that is left, and what it is enough for.

    Args:
        budget_s: Seconds that all may take; None: any number.
        begun: When all began, by `time.monotonic`.
        drawn: The requests.
    """

    def __init__(self, budget_s: float | None, begun: float, drawn: Batch) -> None:
        self.prompt = int(drawn.per_sample((~drawn.mask).long()).min())
        self._budget_s, self._end = budget_s, math.inf if budget_s is None else begun + budget_s
        self._requests = list(drawn.sequences())
        self._longest = max(self._requests, key=len)
        self._witnesses: list[float] = []
        self._engines: dict[str, float] = {}
        self._step = math.inf

    def is_left(self) -> bool:
        """True until the end."""
        return time.monotonic() < self._end

    def measure_witnesses(self, witnesses: Sequence[Tap]) -> None:
        """Measures the model in float64, and in the engines' types."""
        self._witnesses = [self._measure(tap, _SHORT) for tap in witnesses]

    def measure(self, comparison: EnginePair, taps: Sequence[Tap]) -> None:
        """Measures the engines of a comparison, if they are new."""
        for choice, tap in zip(comparison.sides, taps, strict=True):
            if str(choice) not in self._engines:
                self._engines[str(choice)] = self._measure(tap, choice.options.prompt or _SHORT)

    def _measure(self, tap: Tap, short: int) -> float:
        """Seconds of a pass; the first one, which opens kernels, is not timed."""
        tap.run(self._longest[:short], {})
        begun = time.perf_counter()
        tap.run(self._longest[:short], {})
        between = time.perf_counter()
        tap.run(self._longest, {})
        self._step = min(self._step, between - begun)
        return time.perf_counter() - between

    def _expect(self, choice: EngineChoice) -> float:
        """Seconds of a pass of an engine, by those that were measured."""
        if choice.options.prompt is not None:
            return self._engines.get(str(choice), self._step * len(self._longest))
        return self._engines.get(str(choice), max(self._engines.values()) * (1 + choice.options.neighbors))

    def predict(self, comparisons: Sequence[EnginePair], requests: int) -> tuple[float, float]:
        """Predicts seconds: where all engines agree on so many requests, and how many more a place may take."""
        agree, place = 0.0, 0.0
        for one in comparisons:
            sides = [self._expect(choice) for choice in one.sides]
            passes = [*sides, *self._witnesses]
            floor, found = (
                sum(count * each for count, each in zip(counts, passes, strict=True)) for counts in (_FLOOR, _PLACE)
            )
            agree, place = agree + requests * sum(sides) + floor, max(place, found)
        return agree, place

    def share(self, comparisons: Sequence[EnginePair]) -> tuple[Sequence[EnginePair], list[Tensor]]:
        """Returns as many of the first comparisons as there is time for, and what they read; none if for none.

        They read as many requests as all of them have time for.
        """
        left = self._end - time.monotonic()
        for count in range(len(comparisons), 0, -1):
            requests = len(self._requests)
            while requests:
                if self.predict(comparisons[:count], requests)[0] < left:
                    return comparisons[:count], self._requests[:requests]
                requests //= 2
        return [], []

    def describe(self, requests: Sequence[Tensor]) -> str:
        """Says what is read of the requests."""
        return f"{len(requests)} of {len(self._requests)} requests, {max(map(len, requests))} tokens at most"

    def list_dropped(self, requests: Sequence[Tensor]) -> list[str]:
        """Returns what was drawn and is not among the requests that were chosen."""
        count = len(self._requests)
        return [f"{count - len(requests)} of {count} drawn requests"] if len(requests) < count else []

    def refuse(self, comparison: EnginePair) -> InputError:
        """Makes the error that says how long a comparison takes at least."""
        needed, _ = self.predict([comparison], 1)
        left = self._end - time.monotonic()
        return InputError(
            f"locate needs {needed:.1f} s for one request of {len(self._longest)} tokens, and {max(left, 0):.1f} s of "
            f"grid.budget_s={self._budget_s:g} are left: raise it"
        )
