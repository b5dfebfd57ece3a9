"""Drawings and tables for the terminal."""

from __future__ import annotations

import math
import os
import pty
import re
import subprocess
import sys

import pytest

from lockstep.report.terminal import curve, summary_table


def test_a_curve_has_the_size_asked_for_a_title_and_no_escape_codes() -> None:
    drawn = curve([math.tanh(step / 10) for step in range(30)], "sampled reward", width=60, height=12)
    assert "\x1b" not in drawn
    rows = drawn.splitlines()
    assert len(rows) == 12
    assert max(map(len, rows)) == 60
    assert rows[0].strip() == "sampled reward"


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_only_where_they_are_wanted(environment: dict[str, str], coloured: bool) -> None:
    code = "from lockstep.report.terminal import curve; print(curve([1.0, 2.0], 'two'))"
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    reader, writer = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=writer, env={**kept, **environment}, check=True)
    os.close(writer)
    assert ("\x1b[" in os.read(reader, 1 << 20).decode()) == coloured
    os.close(reader)


def test_a_curve_rises_where_its_values_rise() -> None:
    rows = curve([float(step) for step in range(40)], "up", width=60, height=14).splitlines()
    inside = [row.split("┤")[-1].split("│")[-2 if row.count("│") == 2 else 0] for row in rows[2:-2]]
    marks = [match.start() for match in (re.search(r"[^\s│]", row) for row in inside) if match]
    assert len(marks) > 5
    assert marks == sorted(marks, reverse=True)


def test_ticks_are_whole_steps() -> None:
    bottom = curve([0.0, 1.0, 0.5] * 7, "ticks").splitlines()[-1]
    assert bottom.split() == [str(step) for step in range(1, 22, 2)]
    bottom = curve([0.0, 1.0, 0.5], "ticks", steps=[0, 5, 30]).splitlines()[-1]
    assert bottom.split() == ["0", "5", "30"]


def test_a_gap_where_there_is_no_number_and_no_values_at_all() -> None:
    with_gap = curve([0.0, math.nan, 1.0, math.inf, 1.0], "gap")
    assert "nan" not in with_gap
    assert len(curve([], "empty", height=6).splitlines()) == 6


def test_one_curve_leaves_nothing_in_the_next() -> None:
    first = curve([1.0, 2.0], "first")
    curve([5.0, 1.0, 9.0], "second", width=40, height=8)
    assert curve([1.0, 2.0], "first") == first


def test_columns_are_as_wide_as_their_widest_entry() -> None:
    rows = [("", "before", "after"), ("accuracy", "0.31", "0.9"), ("run", "runs/x", "")]
    assert summary_table(rows) == "          before  after\naccuracy  0.31    0.9\nrun       runs/x"
    assert summary_table([]) == ""


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        summary_table([("a", "b"), ("c",)])
