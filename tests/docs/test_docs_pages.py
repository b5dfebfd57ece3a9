"""Pages and pictures that are made from the code are those that are committed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.concepts import draw_all, draw_exactness

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_reference_pages_are_those_of_the_code(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / ".ci/docs_pages.py"), str(tmp_path)], cwd=ROOT, check=True)
    made = {page.name: page.read_text() for page in tmp_path.iterdir()}
    assert made == {page.name: page.read_text() for page in (DOCS / "reference").iterdir()}, "run `make docs-pages`"


@pytest.mark.parametrize(("name", "svg"), [pytest.param(*each, id=each[0]) for each in draw_all(None)])
def test_pictures_of_concepts_are_those_of_the_code(name: str, svg: str) -> None:
    assert (DOCS / "pictures" / name).read_text() == svg, "python -m benchmarks.concepts"


def test_gaps_stand_in_their_columns() -> None:
    svg = draw_exactness({"usual": [0.0, 0.0, 3e-7, 2.5], "exact": [0.0] * 4})
    counts = [line.partition(">")[2].partition("<")[0] for line in svg.splitlines() if "middle" in line]
    assert counts[0::2] == ["2", "", "", "1", "", "", "1", "4", "", "", "", "", "", ""]
