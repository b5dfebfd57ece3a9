"""Drawings and tables for the terminal."""

from __future__ import annotations

import math
import os
import pty
import re
import subprocess
import sys

import pytest

from lockstep.report.terminal import curve


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
