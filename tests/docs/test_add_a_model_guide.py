"""The guide says of places, outcomes and errors what the code says."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import NormalDist

import pytest

GUIDE = (Path(__file__).parents[2] / "docs/guides/add_a_model.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading's first line of names."""
    table = GUIDE.partition(heading)[2].partition("\n\n")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def test_error_table_of_add_a_model_guide_follows_from_log_probability_spread() -> None:
    header = next(line for line in GUIDE.splitlines() if "left at 100 tokens" in line)
    listed = rows(header)
    assert len(listed) == 4
    for _, error, spread, divergence, *left in listed:
        sigma = float(spread)
        assert float(error) == pytest.approx(
            2 * math.exp(sigma**2 / 2) * NormalDist().cdf(sigma), abs=5e-5
        )
        assert float(divergence) == pytest.approx(sigma**2 / 2, rel=0.05)
        for tokens, share in zip((100, 1000, 10000), left, strict=True):
            exact = math.exp(-tokens * sigma**2)
            said = {"all": 1.0, "none": 0.0}.get(share)
            number = float(re.sub("%", "", share)) / 100 if said is None else said
            assert number == pytest.approx(exact, abs=0.006)
