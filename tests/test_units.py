"""Sizes for people: three digits and a unit, also just below the next one."""

from __future__ import annotations

import pytest

from lockstep.system.units import format_bytes


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (80e9, "80 GB"),
        (999.7e9, "1 TB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_a_size_has_three_digits_and_a_unit(size: float, text: str) -> None:
    assert format_bytes(size) == text
