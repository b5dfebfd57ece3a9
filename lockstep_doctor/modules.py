"""A tap on any torch model in this process whose modules have the names of `transformers`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_doctor.cuts import OUTPUT, ROUTED, Capture, CutPoint, End, name_cuts
from lockstep_doctor.operators import OperatorTrace, Recorder, is_model_file

Visit = Callable[[CutPoint, Tensor], None]
"""Sees the value of a cut, and may overwrite it."""


class Pass:
    """The visits at the cuts of one pass: each is seen, and given its forced value.

    Args:
        forced: Values by cut.
        recorder: Records operators from `start` to `end`; None: nothing does.
        start: None: from the beginning.
        end: A cut.
    """

    def __init__(
        self,
        forced: Mapping[CutPoint, Tensor],
        recorder: Recorder | None = None,
        start: CutPoint | None = None,
        end: CutPoint | None = None,
    ) -> None:
        self._forced, self._recorder, self._start, self._end = forced, recorder, start, end
        self._calls: Counter[CutPoint] = Counter()
        self._seen: dict[CutPoint, Tensor] = {}
        if recorder is not None:
            recorder.on = start is None

    def visit(self, cut: CutPoint, value: Tensor) -> None:
        """Implements `Visit`."""
        recorder = self._recorder
        on = recorder is not None and recorder.on
        if recorder is not None:
            recorder.on = False
        self._calls[cut] += 1
        self._seen[cut] = value.detach().clone()
        other = self._forced.get(cut)
        if other is not None and other.numel() == value.numel():
            value.copy_(other.reshape(value.shape))
        if recorder is not None:
            recorder.on = (on or cut == self._start) and cut != self._end

    def collect(self) -> dict[CutPoint, Tensor]:
        """Returns the values of the cuts that the pass came by once."""
        return {cut: value for cut, value in self._seen.items() if self._calls[cut] == 1}


class ModuleTap:
    """Implements `tap.Tap` by hooks on modules.

    Args:
        model: Read by `read`; by default by `model(input_ids=…, use_cache=False)`, whose result has `logits`.
        name: What it is called in reports.
        builder: Python that makes `model`, and `read(tokens_T)` that returns logits [T, V], for a reproduction.
        read: From the model and ids [T] to logits [T, V].
    """

    def __init__(
        self, model: nn.Module, name: str, builder: str = "", read: Callable[[nn.Module, Tensor], Tensor] | None = None
    ) -> None:
        self.model, self.name, self.builder = model, name, builder
        self._reads = read or _read_plainly
        self._cuts = name_cuts(find_watched(model))
        self._places = {cut: place for place, cut in self._cuts.items()}

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> Capture:
        one = Pass(forced)
        logits = self._read(tokens_T, one)
        return Capture(forced.get(OUTPUT, logits), one.collect() | {OUTPUT: logits})

    def trace(
        self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor], start: CutPoint | None, end: CutPoint
    ) -> OperatorTrace:
        with Recorder() as recorder:
            self._read(tokens_T, Pass(forced, recorder, start, end))
        return recorder.trace

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        with count_functions() as ran:
            self._read(tokens_T, Pass({}))
        return ran

    @torch.no_grad()
    def _read(self, tokens_T: Tensor, one: Pass) -> Tensor:
        """Returns logits [T, V]."""
        with visit_cuts(self.model, self.values, one.visit):
            return self._reads(self.model, tokens_T)

    def address(self, cut: CutPoint) -> str | None:
        """Returns `path|end|place`, the module and the end of it at which a cut lies; None where it lies at none."""
        if cut == OUTPUT:
            return cut.stage
        stage, _, number = cut.stage.partition(".")
        base, place = (cut, "0") if cut in self._places else (CutPoint(stage, cut.layer), number)
        return None if base not in self._places else "|".join((*self._places[base], place))

    def values(self, path: str, end: End, value: Any) -> Iterator[tuple[CutPoint, Tensor]]:
        cut = self._cuts.get((path, end))
        if cut is None:
            return
        several = value if isinstance(value, tuple) else (value,)
        for place, x in enumerate(several if end == "out" or cut.stage == ROUTED else several[:1]):
            if isinstance(x, Tensor):
                yield (CutPoint(f"{cut.stage}.{place}", cut.layer) if place else cut), x


def _read_plainly(model: nn.Module, tokens_T: Tensor) -> Tensor:
    return model(input_ids=tokens_T[None], use_cache=False).logits[0]


Values = Callable[[str, End, Any], Iterable[tuple[CutPoint, Tensor]]]
"""Function from a module's path and its inputs or output to the cuts that lie there, with their values as views."""


def find_watched(model: nn.Module) -> list[str]:
    """The modules that have none inside, or weights of their own."""
    return [
        path
        for path, module in model.named_modules()
        if path and (not any(module.children()) or any(True for _ in module.parameters(recurse=False)))
    ]


@contextmanager
def visit_cuts(model: nn.Module, values: Values, visit: Visit) -> Iterator[None]:
    """Visits every cut at a module's input and output in the block."""

    def at(path: str, end: End, value: Any) -> None:
        for cut, x in values(path, end, value):
            visit(cut, x)

    with ExitStack() as hooks:
        for path in find_watched(model):
            module = model.get_submodule(path)
            before = module.register_forward_pre_hook(lambda _, inputs, *, path=path: at(path, "in", inputs))
            after = module.register_forward_hook(lambda _, inputs, output, *, path=path: at(path, "out", output))
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield


@contextmanager
def count_functions() -> Iterator[Counter[str]]:
    """Counts the calls of every function of models in the block."""
    ran: Counter[str] = Counter()

    def note(frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and is_model_file(frame.f_code.co_filename):
            ran[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.setprofile(before)
