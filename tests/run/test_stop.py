"""When a run ends before its end."""

from __future__ import annotations

from lockstep.core import exit_codes
from lockstep.run.stop import StopRequests


def steps(deadline_s: float, lengths: list[float], start_up_s: float = 0.0) -> int:
    """How many steps of these lengths are made."""
    now = [0.0]
    stop = StopRequests(deadline_s, lambda: now[0])
    now[0] += start_up_s
    stop.start_timing()
    for done, length in enumerate(lengths, 1):
        now[0] += length
        why = stop.check_after_step()
        if why is not None:
            assert why[1] == exit_codes.OUT_OF_TIME
            return done
    return len(lengths)


def test_run_stops_if_next_step_would_exceed_deadline() -> None:
    assert steps(10.0, [3.0] * 9) == 3
    assert steps(100.0, [3.0] * 9) == 9


def test_deadline_check_uses_longest_step_so_far() -> None:
    assert steps(10.0, [5.0, 1.0, 1.0, 1.0]) == 2


def test_startup_time_is_excluded_from_step_length() -> None:
    assert steps(60.0, [1.0] * 9, start_up_s=40.0) == 9


def test_stop_check_returns_requested_reason_and_exit_code() -> None:
    stop = StopRequests(None)
    assert stop.check_after_step() is None
    stop.ask_to_stop("SIGTERM was received", 143)
    assert stop.check_after_step() == ("SIGTERM was received", 143)
