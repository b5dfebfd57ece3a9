"""The lines of models that run: in a segment while `locate` traces it, also those that call no
operator; in files.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, ModuleType
from typing import Any

from lockstep_doctor.operators import Recorder, StackFrame, frame_of, is_model_file


class LineRecorder(Recorder):
    """Notes lines besides operators.

    Args:
        traced: Is given a set for each trace, with its lines, and those that call what runs at its
            ends.
        opened: See `Recorder`.
    """

    def __init__(self, traced: list[set[StackFrame]], opened: Sequence[str] = ()) -> None:
        self._traced, self._lines = traced, set[StackFrame]()
        super().__init__(opened)

    def __enter__(self) -> LineRecorder:
        if not self._entered:
            self._before = sys.gettrace()
            self._traced.append(self._lines)
            sys.settrace(self._note_line)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if not self._entered:
            sys.settrace(self._before)

    def restart_record(self) -> None:
        super().restart_record()
        self._lines.clear()
        self._lines.update(map(frame_of, self._begun))

    def start_segment(self) -> None:
        super().start_segment()
        self._lines.update(map(frame_of, self._begun))

    def end_segment(self) -> None:
        if self.on:
            self._lines.update(map(frame_of, self._list_inside()))
        super().end_segment()

    def _note_line(self, frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        if not is_model_file(frame.f_code.co_filename):
            return None
        if self.on and not self.early:
            self._lines.add(frame_of(frame))
        return self._note_line


@contextmanager
def watch_lines(*taps: ModuleType) -> Iterator[list[set[StackFrame]]]:
    """Notes the lines of every trace in the block, in order; `locate` traces its first place first,
    in both engines.

    Args:
        taps: Modules of the taps that trace.
    """
    traced: list[set[StackFrame]] = []
    for tap in taps:
        vars(tap)["Recorder"] = partial(LineRecorder, traced)
    try:
        yield traced
    finally:
        for tap in taps:
            vars(tap)["Recorder"] = Recorder


@contextmanager
def lines_that_run(files: Collection[str]) -> Iterator[set[tuple[str, int]]]:
    """Notes the lines of files that run in the block, in this thread and in those that are started
    there.
    """
    ran: set[tuple[str, int]] = set()
    wanted = frozenset(files)

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in wanted:
            return None
        ran.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield ran
    finally:
        sys.settrace(None)
        threading.settrace(None)  # pyright: ignore[reportArgumentType]
