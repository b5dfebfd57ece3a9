"""A sweep under way for people: one table on a terminal, a line for each event anywhere else."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.config import Common
from lockstep.printable import print_text
from lockstep.report.log import METRICS
from lockstep.report.progress import HEADLINES
from lockstep.run.checkpoint import Checkpoints

if TYPE_CHECKING:
    from lockstep.sweeps.sweep import SweepJob

_TAIL_BYTES = 1 << 16
_METRICS = 3  # in a line of the table
_MOST_LINES = 30


class SweepView:
    """The display of a sweep; it starts no thread, since runs are forks."""

    def __init__(self, title: str, jobs: Sequence[SweepJob], live: Live | None) -> None:
        self._title, self._jobs, self._live = title, jobs, live

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        if self._live is None:
            print_text(text, file=sys.stderr)
        else:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show_start(self, job: SweepJob) -> None:
        """Says that a run begins, or resumes."""
        if self._live is None:
            verb = "resumes" if Checkpoints(job.run.folder / "checkpoints", keep=1).find() else "begins"
            self.note(f"{job.run.name} {verb}; {job.log}")

    def show_end(self, job: SweepJob) -> None:
        """Says how a run's process has ended."""
        done = sum(one.state == "finished" for one in self._jobs)
        why = f": {job.sentence}" if job.state == "failed" else ""
        if self._live is None or why:
            self.note(f"{job.run.name} {job.state}, {done} of {len(self._jobs)} are finished{why}")

    def update(self) -> None:
        """Draws the table anew."""
        if self._live is not None:
            self._live.update(_draw(self._title, self._jobs), refresh=True)


@contextmanager
def show_sweep(title: str, jobs: Sequence[SweepJob]) -> Iterator[SweepView]:
    """Shows a sweep on standard error while the block lasts."""
    console = Console(file=sys.stderr)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        view = SweepView(title, jobs, None)
        view.note(title)
        yield view
        return
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        view = SweepView(title, jobs, live)
        view.update()
        yield view


def _draw(title: str, jobs: Sequence[SweepJob]) -> RenderableType:
    counts = Counter(job.state for job in jobs)
    table = Table.grid(padding=(0, 2))
    notable = [job for job in jobs if job.state in ("running", "failed", "stopped")]
    for job in notable[:_MOST_LINES]:
        table.add_row(job.run.name, job.state, *_describe_progress(job))
    told = " · ".join(f"{number} {state}" for state, number in counts.items())
    more = f" · {len(notable) - _MOST_LINES} more" if len(notable) > _MOST_LINES else ""
    return Group(Text(title, style="bold", overflow="fold"), table, Text(told + more))


def _describe_progress(job: SweepJob) -> tuple[str, str, str]:
    """Steps, headlines and seconds of a run."""
    row = read_newest(job.run.folder)
    recipe = job.run.loaded.expect(Common)
    of = "" if recipe.run.max_steps < 0 else f"/{recipe.run.max_steps}"
    known = [f"{name} {row[name]:.4g}" for name in HEADLINES if isinstance(row.get(name), float)]
    seconds = f"{time.monotonic() - job.since:.0f} s" if job.state == "running" else ""
    return f"step {row.get('step', 0):.0f}{of}", " · ".join(known[:_METRICS]), seconds


def read_newest(folder: Path) -> dict[str, float]:
    """The newest whole line of a run's metrics; empty before the first."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            whole = file.read().rpartition(b"\n")[0].rsplit(b"\n", 1)[-1]
        return json.loads(whole)
    except (OSError, ValueError):
        return {}
