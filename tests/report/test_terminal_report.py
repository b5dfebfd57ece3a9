"""Drawings for the terminal."""

from __future__ import annotations

import math

from lockstep.report.terminal import curve

STEPS = list(range(1, 41))


def test_a_curve_has_a_title_and_no_escape_codes() -> None:
    drawn = curve(STEPS, [math.tanh(step / 10) for step in STEPS], "sampled reward")
    assert "\x1b" not in drawn
    rows = drawn.splitlines()
    assert (len(rows), max(map(len, rows))) == (14, 72)
    assert rows[0].strip() == "sampled reward"
