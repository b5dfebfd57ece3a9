"""What people see of a run, and the seconds that the log gets."""

from __future__ import annotations

import io
import os
import pty
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from lockstep.report.progress import RunProgress, show_progress


@dataclass
class Clock:
    """Shows the time that it is set to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_phase_timings_are_summed_and_cleared_when_taken(clock: Clock) -> None:
    with show_progress("run", 3, io.StringIO(), clock) as shown:
        for seconds in (1.0, 2.0):
            with shown.phase("generate"):
                clock.now += seconds
        with shown.phase("train"):
            clock.now += 0.5
        assert shown.take_timings() == {"generate": 3.0, "train": 0.5}
        assert shown.take_timings() == {}


def test_a_phase_within_a_phase_stops_the_outer_clock(clock: Clock) -> None:
    with show_progress("run", 3, io.StringIO(), clock) as shown:
        with shown.phase("outer"):
            clock.now += 1
            with shown.phase("inner"):
                clock.now += 10
            clock.now += 2
        assert shown.take_timings() == {"outer": 3.0, "inner": 10.0}


def steps_told(out: io.StringIO) -> list[str]:
    """The steps of the lines below the title."""
    return [line.split()[1] for line in out.getvalue().splitlines()[1:]]


def test_non_terminal_progress_prints_first_step_and_every_10_percent(
    clock: Clock,
) -> None:
    out = io.StringIO()
    with show_progress("run", 1600, out, clock) as shown:
        for step in range(1, 1601):
            clock.now += 0.125
            shown.end_step(step, {}, 10)
    assert steps_told(out) == ["1/1600", *(f"{step}/1600" for step in range(160, 1601, 160))]


def test_time_left_follows_the_newest_steps_and_continues_from_a_checkpoint(clock: Clock) -> None:
    with show_progress("run", 1000, io.StringIO(), clock) as shown:
        for step in range(500, 520):
            clock.now += 100 if step < 510 else 1
            shown.end_step(step + 1, {}, 1)
        assert shown.left_s == 480
        assert shown.bar_parts[-1] == "8:00 left"


def on_a_terminal(
    columns: int,
    steps: int | None,
    use: Callable[[RunProgress], None],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """All that a terminal of that width was sent during a run."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal, show_progress("my run", steps, terminal) as shown:
        use(shown)
    parts: list[bytes] = []
    # how a terminal says that there is no more
    with os.fdopen(reader, "rb", buffering=0) as screen, suppress(OSError):
        while part := screen.read(1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.parametrize("columns", [30, 40])
def test_narrow_terminal_keeps_metric_names_with_values_and_notes_unbroken(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(shown: RunProgress) -> None:
        shown.show_note("tensorboard: tensorboard --logdir runs/ppo_arithmetic-0123456789")
        shown.end_step(1, {"train/reward": 0.5, "policy/loss": -0.25, "critic/loss": 0.125}, 100)

    lines = on_a_terminal(columns, 4, use, monkeypatch).splitlines()
    assert any(
        "tensorboard: tensorboard --logdir runs/ppo_arithmetic-0123456789" in line for line in lines
    )
    for part in ("step 1/4", "train/reward 0.5", "policy/loss -0.25", "critic/loss 0.125"):
        assert any(part in line for line in lines), part
    assert not any("train/reward" in line and "critic/loss" in line for line in lines)


def test_on_a_terminal_the_bar_shows_phase_headlines_and_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def use(shown: RunProgress) -> None:
        shown.set_total(4, "2 prompts → 2 responses")
        for step in (1, 2):
            shown.end_step(step, {"train/reward": 0.5}, 100)
        with shown.phase("generate"):
            time.sleep(0.5)

    screen = on_a_terminal(100, None, use, monkeypatch)
    for part in (
        "my run",
        "2 prompts → 2 responses",
        "step 2/4",
        "train/reward 0.5",
        "tokens/s",
        "left",
        "generate 0.",
    ):
        assert part in screen, part
    assert "\x1b[" in screen
