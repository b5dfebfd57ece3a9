"""Tap on any torch model in this process whose modules have the names of `transformers`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_doctor.cuts import OUTPUT, ROUTED, CutPoint, End, PassCapture, name_cuts
from lockstep_doctor.operators import OperatorTrace, Recorder, is_model_file


class CutShare:
    """The part of a cut's value that one process or call holds; in this class, all of it."""

    def gather_tokens(self, cut: CutPoint, value: Tensor) -> Tensor | None:
        """Returns the values of all tokens, in order; None if the value is not per token."""
        return value

    def scatter_tokens(self, cut: CutPoint, whole: Tensor, value: Tensor) -> None:
        """Writes this process's part of a value that `gather_tokens` would return."""
        value.copy_(whole)


_WHOLE = CutShare()


class PassState:
    """State of one pass over a sequence: records the value of each visited cut, and overwrites it
    if a value is forced.

    A cut that is visited several times, such as once per decoded token, has the values of all
    visits in order.

    Args:
        forced: Values to write, by cut.
        recorder: Recorder of operators from `start` to `end`; None to record none.
        start: First cut of the recorded segment; None: the beginning.
        end: Last cut of the recorded segment.
        share: Maps this process's values to whole ones.
    """

    def __init__(
        self,
        forced: Mapping[CutPoint, Tensor],
        recorder: Recorder | None = None,
        start: CutPoint | None = None,
        end: CutPoint | None = None,
        share: CutShare = _WHOLE,
    ) -> None:
        self._forced = forced
        self._recorder = recorder
        self._start = start
        self._end = end
        self._share = share
        self._count: Counter[CutPoint] = Counter()
        self._seen: dict[CutPoint, list[Tensor]] = {}

    def begin_call(self) -> None:
        """Notes a call of the model, on all or some of the tokens."""
        if self._recorder is not None:
            self._recorder.begin_call(early=self._start is not None)

    def pause_recording(self) -> AbstractContextManager[None]:
        """Context in which nothing is recorded."""
        if self._recorder is None:
            return nullcontext()
        return self._recorder.pause_recording()

    def visit_cut(self, cut: CutPoint, value: Tensor) -> None:
        """Records the value of a cut, and overwrites it if one is forced."""
        with self.pause_recording():
            whole = self._share.gather_tokens(cut, value.detach())
            is_given = whole is not None and self._exchange_value(cut, whole, value)
        if self._recorder is None:
            return
        if is_given:
            self._recorder.record_overwrite(value)
        if cut == self._end:
            self._recorder.end_segment()
        elif cut == self._start:
            self._recorder.start_segment()
        elif cut.layer is not None:
            self._recorder.end_early()

    def _exchange_value(self, cut: CutPoint, whole: Tensor, value: Tensor) -> bool:
        """Stores a value and overwrites it with the forced one; returns whether one is forced."""
        start = self._count[cut]
        self._count[cut] += whole.numel()
        self._seen.setdefault(cut, []).append(whole.clone())
        other = self._forced.get(cut)
        if other is None or other.numel() < self._count[cut]:
            return False
        piece = other.reshape(-1)[start : self._count[cut]].reshape(whole.shape)
        self._share.scatter_tokens(cut, piece, value)
        return True

    def collect_values(self) -> dict[CutPoint, Tensor]:
        """Returns values by cut; values of several visits are concatenated to [T, …]."""
        values = dict[CutPoint, Tensor]()
        for cut, visits in self._seen.items():
            values[cut] = visits[0]
            if len(visits) > 1:
                values[cut] = torch.cat([x.reshape(-1, x.shape[-1]) for x in visits])
        return values


class ModuleTap:
    """Implements `tap.Tap` by hooks on modules.

    Args:
        model: The model.
        name: Name of the engine in reports.
        builder: Python source that defines `model` and `read(tokens_T)`, which returns logits [T,
            V], for a reproduction.
        read: Function from the model and ids [T] to logits [T, V]; default: `model(input_ids=…,
            use_cache=False).logits`.
        prompt: Number of tokens that `read` prefills; None: all.
    """

    def __init__(
        self,
        model: nn.Module,
        name: str,
        builder: str = "",
        read: Callable[[nn.Module, Tensor], Tensor] | None = None,
        prompt: int | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.builder = builder
        self._reads = read or read_plainly
        self._prompt = prompt
        self.paths = find_watched_modules(model)
        cuts = name_cuts(self.paths)
        self.values = values_by_name(cuts)
        self._addresses = {cut: address for address, cut in cuts.items()}

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> PassCapture:
        one = PassState(forced)
        logits = self._read_logits(tokens_T, one)
        seen = one.collect_values() | {OUTPUT: logits}
        return PassCapture(
            forced.get(OUTPUT, logits), {cut: value.cpu() for cut, value in seen.items()}
        )

    def trace(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        start: CutPoint | None,
        end: CutPoint,
    ) -> OperatorTrace:
        with Recorder() as recorder:
            recorder.begin_early()
            self._read_logits(tokens_T, PassState(forced, recorder, start, end))
        return replace(
            recorder.join_calls(),
            split=None if self._prompt is None else (len(tokens_T), self._prompt),
        )

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        with count_functions() as ran:
            self._read_logits(tokens_T, PassState({}))
        return ran

    @torch.no_grad()
    def _read_logits(self, tokens_T: Tensor, one: PassState) -> Tensor:
        """Returns logits [T, V]."""
        first = next(self.model.parameters())
        with use_default_dtype(first.dtype), visit_cuts(self.model, self.paths, self.values, one):
            return self._reads(self.model, tokens_T.to(first.device)).to(tokens_T.device)

    def find_address(self, cut: CutPoint) -> str | None:
        """Returns the location of a cut, `path|end|index`: module, input or output, and index of
        the value. None if it has none.
        """
        if cut == OUTPUT:
            return cut.stage
        stage, _, number = cut.stage.rpartition(".")
        base, index = (cut, "0") if cut in self._addresses else (CutPoint(stage, cut.layer), number)
        if base not in self._addresses:
            return None
        return "|".join((*self._addresses[base], index))


def read_plainly(model: nn.Module, tokens_T: Tensor) -> Tensor:
    """Returns the logits [T, V] of one sequence, by prefill."""
    return model(input_ids=tokens_T[None], use_cache=False).logits[0]


CutValues = Callable[[str, End, Any], Iterable[tuple[CutPoint, Tensor]]]
"""Function from a module's path and its inputs or output to cuts and views of their values."""


def values_by_name(cuts: Mapping[tuple[str, End], CutPoint]) -> CutValues:
    """Returns the `CutValues` function for cuts from `name_cuts`; each of a module's several
    outputs has its own cut.
    """

    def name_values(path: str, end: End, value: Any) -> Iterator[tuple[CutPoint, Tensor]]:
        cut = cuts.get((path, end))
        if cut is None:
            return
        if isinstance(value, tuple):
            several = value
        else:
            several = (value,)
        for index, x in enumerate(several if end == "out" or cut.stage == ROUTED else several[:1]):
            if isinstance(x, Tensor):
                yield (CutPoint(f"{cut.stage}.{index}", cut.layer) if index else cut), x

    return name_values


def find_watched_modules(model: nn.Module) -> list[str]:
    """Returns paths of modules without children or with direct weights, except inside experts,
    which reorder tokens.
    """
    found: list[str] = []
    experts: tuple[str, ...] = ()
    for path, module in model.named_modules():
        own = [weight.ndim for weight in module.parameters(recurse=False)]
        if path and (own or not any(module.children())) and not path.startswith(experts):
            found.append(path)
            experts += (f"{path}.",) if own and max(own) > 2 else ()
    return found


@contextmanager
def use_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Context in which torch's default type is float64 if the model's is, since its constants may
    not fit fp32.
    """
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype if dtype == torch.float64 else usual)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


@contextmanager
def visit_cuts(
    model: nn.Module, paths: Sequence[str], values: CutValues, one: PassState
) -> Iterator[None]:
    """Context in which hooks visit every cut at the input and output of these modules."""

    def visit_module(path: str, end: End, value: Any) -> None:
        with one.pause_recording():
            found = list(values(path, end, value))
        for cut, x in found:
            one.visit_cut(cut, x)

    with ExitStack() as hooks:
        hooks.callback(model.register_forward_pre_hook(lambda *_: one.begin_call()).remove)
        for path in paths:
            module = model.get_submodule(path)
            before = module.register_forward_pre_hook(
                lambda _, inputs, *, path=path: visit_module(path, "in", inputs)
            )
            after = module.register_forward_hook(
                lambda _, inputs, output, *, path=path: visit_module(path, "out", output)
            )
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        yield


@contextmanager
def count_functions() -> Iterator[Counter[str]]:
    """Context that counts calls of all functions in model code."""
    ran: Counter[str] = Counter()

    def count_call(frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and is_model_file(frame.f_code.co_filename):
            ran[frame.f_code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        yield ran
    finally:
        sys.setprofile(before)
