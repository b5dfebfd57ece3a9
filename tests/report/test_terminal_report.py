"""Drawings for the terminal."""

from __future__ import annotations

import math
import re

from lockstep.report.terminal import curve

STEPS = list(range(1, 41))


def test_a_curve_has_a_title_and_no_escape_codes() -> None:
    drawn = curve(STEPS, [math.tanh(step / 10) for step in STEPS], "sampled reward")
    assert "\x1b" not in drawn
    rows = drawn.splitlines()
    assert (len(rows), max(map(len, rows))) == (14, 72)
    assert rows[0].strip() == "sampled reward"


def test_a_curve_rises_where_its_values_rise() -> None:
    rows = curve(STEPS, [float(step) for step in STEPS], "up").splitlines()
    inside = [row.split("┤")[-1].split("│")[-2 if row.count("│") == 2 else 0] for row in rows[2:-2]]
    marks = [match.start() for match in (re.search(r"[^\s│]", row) for row in inside) if match]
    assert len(marks) > 5
    assert marks == sorted(marks, reverse=True)
