"""The picture of README is of a real run's metrics, and can be drawn anew."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.picture import draw
from lockstep.report.agreement import summarize_agreement

PICTURE = Path(__file__).parents[2] / "docs/pictures/first_run.svg"
ROWS = [
    {"step": 0, "validation/accuracy": 0.25, "validation/accuracy_low": 0.2, "validation/accuracy_high": 0.3},
    *(
        {
            "step": step,
            "train/reward": step / 4,
            "agreement/tokens": 100,
            "agreement/max_abs_logprob_diff": 10.0**-step,
            "agreement/token_mult_prob_error": 1.0 + 1e-5 * step,
            "agreement/bound": 1.001,
            "agreement/breach": 0.0,
        }
        for step in (1, 2, 3)
    ),
    {"step": 3, "validation/accuracy": 0.75, "validation/accuracy_low": 0.7, "validation/accuracy_high": 0.8},
]


def points(svg: str, name: str) -> list[tuple[float, float]]:
    found = re.search(rf'<polyline class="{name}" points="([^"]*)"', svg)
    assert found is not None
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found[1].split())]


def test_values_stand_where_they_belong() -> None:
    svg = draw(ROWS, "a <run>")
    assert points(svg, "held") == [(64.0, 159.0), (640.0, 77.0)]
    assert [y for _, y in points(svg, "sampled")] == [159.0, 118.0, 77.0]
    assert [y for _, y in points(svg, "gap")] == [252.0, 271.0, 290.0]  # a decade apart
    written = ElementTree.fromstring(svg).findall("{http://www.w3.org/2000/svg}text")
    assert " ".join(str(line.text) for line in written[-2:]) == summarize_agreement(ROWS).sentence


def test_the_shipped_picture_is_small_and_of_a_whole_run() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert len(points(text, "gap")) == 60
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text
    assert ">AGREE: " in text
