"""Progress of a run for people: a live bar on a terminal, plain lines anywhere else; and the seconds of each phase."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lockstep.printable import make_printable
from lockstep.report.progress_view import ProgressView

HEADLINES = (
    "train/reward", "train/shaped_reward", "train/kl", "train/loss", "train/acc",
    "policy/loss", "critic/loss", "agreement/token_mult_prob_error",
    "pass@1", "reward",
)  # fmt: skip
"""The metrics that are shown, where a step has them; all are in metrics.jsonl."""

BESIDE = "beside/"
"""Prefix of the names of work that ran beside phases; the phases alone add up to the time of a step."""

_LINES = 10  # for a run of known length, where there is no terminal
_SILENT_S = 300.0  # longest time between two of them
_LINE_EVERY_S = 1.0  # shortest time between two, where the length is not known
_WINDOW = 10  # steps that the throughput and the time left are measured over


Record = Callable[[int, str], object]
"""Takes the steps done and a note."""


class Progress:
    """The progress of a run, which the loop reports; see `show_progress`."""

    def __init__(
        self,
        title: str,
        total_steps: int | None,
        display: _Bar | _Lines,
        clock: Callable[[], float],
        record: Record | None = None,
    ) -> None:
        self._title, self._total, self._display, self._clock = make_printable(title), total_steps, display, clock
        self._record = record
        self._phase: str | None = None
        self._phase_since = self._step_since = clock()
        self._timings: dict[str, float] = {}
        self._step, self._unit = 0, "step"
        self._metrics: dict[str, float] = {}
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW)  # seconds, tokens and steps

    def total(self, steps: int, note: str, unit: str = "step") -> None:
        """Sets the number of steps of the run, as soon as that is known. The first step begins now.

        Args:
            steps: Their number.
            note: A line to show.
            unit: Name of a step.
        """
        self._total, self._unit, self._step_since = steps, unit, self._clock()
        self.note(note)

    def note(self, text: str) -> None:
        """Shows a line that stays, and records it."""
        text = make_printable(text)
        self._display.note(text)
        if self._record is not None:
            self._record(self._step, text)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Names and times what happens inside. A phase within a phase stops the clock of the outer one.

        An error learns in which phase it was raised.
        """
        outer = self._switch(name)
        try:
            yield
        except Exception as error:
            error.add_note(f"phase: {name}, after {self._unit} {self._step}")
            raise
        finally:
            self._switch(outer)

    @contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """Times what happens inside beside other phases, in another thread; it is no part of a step's seconds."""
        since = self._clock()
        try:
            yield
        finally:
            key = f"{BESIDE}{name}"
            self._timings[key] = self._timings.get(key, 0.0) + self._clock() - since

    def step(self, step: int, metrics: Mapping[str, float], tokens: int, steps: int = 1) -> None:
        """Ends a step.

        Args:
            step: Steps done.
            metrics: All of the step's; `HEADLINES` are shown.
            tokens: Tokens that the step worked on.
            steps: Number of steps that were done together.
        """
        now = self._clock()
        self._recent.append((now - self._step_since, tokens, steps))
        self._step, self._step_since = step, now
        self._metrics = {name: metrics[name] for name in HEADLINES if math.isfinite(metrics.get(name, math.nan))}
        self._display.step(self.view())

    def take_timings(self) -> dict[str, float]:
        """Seconds spent in each phase since the last call; to be called when nothing runs beside."""
        self._switch(self._phase)
        timings, self._timings = self._timings, {}
        return timings

    def view(self) -> ProgressView:
        """Returns the progress as it is now."""
        seconds, tokens, steps = map(sum, zip(*self._recent, strict=True)) if self._recent else (0.0, 0, 0)
        left_s = None
        if self._total is not None and len(self._recent) > 1:
            left_s = (self._total - self._step) * seconds / steps
        return ProgressView(
            title=self._title,
            unit=self._unit,
            step=self._step,
            total=self._total,
            phase=None if self._phase is None else (self._phase, self._clock() - self._phase_since),
            metrics=self._metrics,
            tokens_per_s=tokens / seconds if seconds and tokens else None,
            left_s=left_s,
        )

    def _switch(self, phase: str | None) -> str | None:
        """Charges the time until now to the phase that was, and returns it."""
        now, before = self._clock(), self._phase
        if before is not None:
            self._timings[before] = self._timings.get(before, 0.0) + now - self._phase_since
        self._phase, self._phase_since = phase, now
        return before


@contextmanager
def show_progress(
    title: str,
    total_steps: int | None = None,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.perf_counter,
    record: Record | None = None,
) -> Iterator[Progress]:
    """Shows a run while the `with` block lasts.

    Args:
        title: Title of the run.
        total_steps: Steps of the whole run; where it is not known yet, `Progress.total` says it later.
        stream: Target; standard error if None. On a terminal a bar moves, elsewhere there is a line for each
            tenth of the steps, and for the first and the last.
        clock: Seconds that only grow.
        record: Takes each note, with the steps done.
    """
    out = sys.stderr if stream is None else stream
    console = Console(file=out)
    display: _Bar | _Lines = _Bar(console) if out.isatty() and not console.is_dumb_terminal else _Lines(out, clock)
    progress = Progress(title, total_steps, display, clock, record)
    with display.open(progress.view):
        yield progress


def show_notes(clock: Callable[[], float] = time.perf_counter) -> Progress:
    """Progress of a program with a loop of its own: notes on standard error, and nothing else."""
    return Progress("", None, _Lines(sys.stderr, clock), clock)


class _Lines:
    """Display for log files and pipes: lines."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream, self._clock = stream, clock
        self._told: tuple[float, int] | None = None  # when the newest line was written, and at which step

    def open(self, view: Callable[[], ProgressView]) -> AbstractContextManager[object]:
        self.note(view().title)
        return nullcontext()

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def step(self, view: ProgressView) -> None:
        now = self._clock()
        if self._is_due(view, now):
            self._told = now, view.step
            self.note(view.line)

    def _is_due(self, view: ProgressView, now: float) -> bool:
        """True for the first line and the last, in a new tenth of the steps, and after a long silence."""
        if self._told is None or view.step == view.total:
            return True
        since, before = self._told
        if view.total is None:
            return now - since >= _LINE_EVERY_S
        tenths = (step * _LINES // view.total for step in (before, view.step))
        return len(set(tenths)) > 1 or now - since >= _SILENT_S


class _Bar:
    """Display for people: redrawn several times a second, so that a long phase is seen to be alive."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def open(self, view: Callable[[], ProgressView]) -> AbstractContextManager[object]:
        return Live(
            get_renderable=lambda: _draw(view(), self._console.width),
            console=self._console,
            refresh_per_second=5,
            redirect_stdout=sys.stdout.isatty(),  # what is printed appears above the bar, but a pipe keeps its output
        )

    def note(self, text: str) -> None:
        # The terminal breaks a long line, so that a path or a command in it can be copied whole.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def step(self, view: ProgressView) -> None:
        """Does nothing: the next redraw shows the step."""


def _draw(view: ProgressView, width: int) -> RenderableType:
    bar = Table.grid(padding=(0, 1))
    doing = "" if view.phase is None else f"{view.phase[0]} {view.phase[1]:.1f} s"
    bar.add_row(ProgressBar(view.total, view.step, width=32), Text(doing, style="dim"))
    return Group(Text(view.title, style="bold", overflow="fold"), bar, Text(_flow(view.parts, width)))


def _flow(parts: Sequence[str], width: int) -> str:
    """Wraps parts into lines, never between a metric and its value."""
    unbroken = " · ".join(part.replace(" ", "\xa0") for part in parts)
    return "\n".join(textwrap.wrap(unbroken, width, break_on_hyphens=False)).replace("\xa0", " ")
