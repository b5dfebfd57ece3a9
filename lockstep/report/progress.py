"""Progress of a run for people, and the seconds of each phase.

On a terminal it is a live bar, elsewhere plain lines.
"""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lockstep.system.printable import make_printable

HEADLINES = (
    "train/reward", "train/shaped_reward", "train/kl", "train/loss", "train/acc",
    "policy/loss", "critic/loss", "agreement/token_mult_prob_error",
    "pass@1", "reward",
)  # fmt: skip
"""Metrics to show if a step has them; metrics.jsonl has all of them."""

BESIDE = "beside/"
"""Prefix for work that runs alongside phases; only phases add up to a step's time."""

_LINES = 10  # lines per run without a terminal, besides the first
_SILENT_S = 300.0  # maximum time between two lines
_WINDOW = 10  # number of steps for measuring throughput and time left


class RunProgress:
    """The progress of a run, which the loop reports; see `show_progress`.

    Args:
        title: Title of the run.
        total_steps: Number of steps of the run; None while unknown.
        stream: Output for lines.
        clock: A monotonic clock, in seconds.
        terminal: A terminal that shows a bar, so that steps need no lines; None if `stream` is not
            a terminal.
    """

    def __init__(
        self,
        title: str,
        total_steps: int | None,
        stream: TextIO,
        clock: Callable[[], float],
        terminal: Console | None = None,
    ) -> None:
        self._title = make_printable(title)
        self._total = total_steps
        self._unit = "step"
        self._stream = stream
        self._clock = clock
        self._terminal = terminal
        self._phase: str | None = None
        self._phase_since = self._step_since = clock()
        self._timings: dict[str, float] = {}
        self._step = 0
        self._metrics: dict[str, float] = {}
        # seconds, tokens and steps
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=_WINDOW)
        # time of the newest line, and its tenth of the steps
        self._shown: tuple[float, int] | None = None

    def set_total(self, steps: int, note: str, unit: str = "step") -> None:
        """Sets the number of steps of the run once it is known. The first step begins now.

        Args:
            steps: Number of steps.
            note: A line to show.
            unit: Name of a step.
        """
        self._total, self._unit, self._step_since = steps, unit, self._clock()
        self.show_note(note)

    def show_note(self, text: str) -> None:
        """Shows a permanent line."""
        self._print_line(make_printable(text))

    def show_remark(self, text: str) -> None:
        """Shows a permanent line that begins with `note:`."""
        self.show_note(f"note: {text}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Names and times the block as a phase.

        A nested phase pauses the clock of the outer one.

        An error is marked with the phase in which it was raised.
        """
        outer = self._switch_phase(name)
        try:
            yield
        except Exception as error:
            error.add_note(f"phase: {name}, after {self._unit} {self._step}")
            raise
        finally:
            self._switch_phase(outer)

    @contextmanager
    def background_phase(self, name: str) -> Iterator[None]:
        """Times a block that runs alongside other phases, in another thread.

        It does not count toward a step's seconds.
        """
        since = self._clock()
        try:
            yield
        finally:
            key = f"{BESIDE}{name}"
            self._timings[key] = self._timings.get(key, 0.0) + self._clock() - since

    def end_step(
        self, step: int, metrics: Mapping[str, float], tokens: int, steps: int = 1
    ) -> None:
        """Ends a step.

        Args:
            step: Number of finished steps.
            metrics: All metrics of the step; `HEADLINES` are shown.
            tokens: Tokens that the step processed.
            steps: Number of steps that were done together.
        """
        now = self._clock()
        self._recent.append((now - self._step_since, tokens, steps))
        self._step = step
        self._step_since = now
        self._metrics = {
            name: metrics[name] for name in HEADLINES if math.isfinite(metrics.get(name, math.nan))
        }
        tenth = 0 if not self._total else step * _LINES // self._total
        if self._terminal is None and (
            self._shown is None or tenth != self._shown[1] or now - self._shown[0] >= _SILENT_S
        ):
            self._shown = now, tenth
            self._print_line(" · ".join(self.bar_parts))

    def take_timings(self) -> dict[str, float]:
        """Seconds spent in each phase since the last call; call it when nothing runs alongside."""
        self._switch_phase(self._phase)
        timings = self._timings
        self._timings = {}
        return timings

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step at the current pace; None before the second step."""
        if self._total is None or len(self._recent) < 2:
            return None
        seconds, _, steps = map(sum, zip(*self._recent, strict=True))
        return (self._total - self._step) * seconds / steps

    @property
    def bar_parts(self) -> list[str]:
        """Everything except the title and the phase, each part in a few words."""
        parts = [
            f"{self._unit} {self._step}"
            if self._total is None
            else f"{self._unit} {self._step}/{self._total}"
        ]
        parts += [f"{name} {value:.4g}" for name, value in self._metrics.items()]
        recent = list(self._recent)  # a copy, because a thread draws the bar
        seconds = sum(entry[0] for entry in recent)
        tokens = sum(entry[1] for entry in recent)
        if seconds and tokens:
            parts.append(f"{tokens / seconds:,.0f} tokens/s")
        if self.left_s is not None:
            parts.append(f"{_format_clock(self.left_s)} left")
        return parts

    def draw_bar(self, width: int) -> RenderableType:
        """The current bar."""
        bar = Table.grid(padding=(0, 1))
        if self._phase is None:
            doing = ""
        else:
            doing = f"{self._phase} {self._clock() - self._phase_since:.1f} s"
        # non-breaking spaces keep a metric and its value on one line
        unbroken = " · ".join(part.replace(" ", "\xa0") for part in self.bar_parts)
        wrapped = "\n".join(textwrap.wrap(unbroken, width, break_on_hyphens=False))
        bar.add_row(ProgressBar(self._total, self._step, width=32), Text(doing, style="dim"))
        return Group(
            Text(self._title, style="bold", overflow="fold"),
            bar,
            Text(wrapped.replace("\xa0", " ")),
        )

    def _print_line(self, text: str) -> None:
        if self._terminal is None:
            print(text, file=self._stream, flush=True)
        # the terminal wraps long lines, so that a path or a command can be copied
        else:
            self._terminal.print(text, markup=False, highlight=False, soft_wrap=True)

    def _switch_phase(self, phase: str | None) -> str | None:
        """Charges the time since the last switch to the current phase, and returns that phase."""
        now = self._clock()
        before = self._phase
        if before is not None:
            self._timings[before] = self._timings.get(before, 0.0) + now - self._phase_since
        self._phase = phase
        self._phase_since = now
        return before


@contextmanager
def show_progress(
    title: str,
    total_steps: int | None = None,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[RunProgress]:
    """Shows a run's progress during the `with` block.

    Args:
        title: Title of the run.
        total_steps: Number of steps of the run; if unknown, `RunProgress.set_total` sets it later.
        stream: Output; standard error if None. A terminal shows a bar; other outputs get a line for
            each tenth of the steps, and for the first and the last.
        clock: A monotonic clock, in seconds.
    """
    out = sys.stderr if stream is None else stream
    console = Console(file=out)
    if not out.isatty() or console.is_dumb_terminal:
        print(make_printable(title), file=out, flush=True)
        yield RunProgress(title, total_steps, out, clock)
        return
    progress = RunProgress(title, total_steps, out, clock, console)
    with Live(
        get_renderable=lambda: progress.draw_bar(console.width),
        console=console,
        refresh_per_second=5,  # shows that a long phase is alive
        # prints appear above the bar, but a pipe keeps its output
        redirect_stdout=sys.stdout.isatty(),
    ):
        yield progress


def show_notes(clock: Callable[[], float] = time.perf_counter) -> RunProgress:
    """Progress of a program with its own loop: only notes on standard error."""
    return RunProgress("", None, sys.stderr, clock)


def _format_clock(seconds: float) -> str:
    """Hours, minutes and seconds, as on a clock."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02}:{second:02}"
    return f"{minute}:{second:02}"
