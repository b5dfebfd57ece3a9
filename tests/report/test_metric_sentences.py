"""A sentence on each metric that our algorithms log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lockstep.report.metric_sentences import describe_metric

ROOT = Path(__file__).parents[2]
OF_THE_GUIDES = r"`((?:train|validation|val|policy|critic|agreement|weight_sync|judge|meta_judge|watch|staleness|prompts)/[\w@/]+)`"


def documented() -> list[str]:
    """The metrics that a page of the documentation names."""
    # whose names are those of others
    pages = sorted({*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs/coming_from.md"})
    return sorted({name for page in pages for name in re.findall(OF_THE_GUIDES, page.read_text())})


def logged() -> list[str]:
    """The metrics of the golden runs, and those whose names the code spells out."""
    others = {ROOT / "lockstep/report/metric_sentences.py"}
    code = [path.read_text() for path in sorted({*(ROOT / "lockstep").rglob("*.py")} - others)]
    names = {name for text in code for name in re.findall(OF_THE_GUIDES.replace("`", '"'), text)}
    for path in (ROOT / "tests/golden").rglob("metrics.jsonl"):
        names |= {name for line in path.read_text().splitlines() for name in json.loads(line)}
    return sorted(names - {"step"})


@pytest.mark.parametrize("name", sorted({*documented(), *logged()}))
def test_every_logged_or_documented_metric_has_description(name: str) -> None:
    sentence = describe_metric(name)
    assert sentence is not None
    assert re.fullmatch(r"[A-Z0-9][^\n]{8,150}\.", sentence), sentence
