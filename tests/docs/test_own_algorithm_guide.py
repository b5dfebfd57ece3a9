"""The guide shows the example's own lines, and its tables have all that there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import lockstep.algorithms
from lockstep.algorithms import Algorithm, Job, Setup
from lockstep.config import Common

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/own_algorithm.md").read_text()
EXAMPLE = (ROOT / "examples/custom_algorithm/reinforce.py").read_text()


def members(heading: str) -> set[str]:
    """The names in the first column of the table under a heading's first cell."""
    table = GUIDE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)", row.split("|")[1])}


def test_what_it_shows_is_the_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == 5
    assert [block for block in blocks if block.rstrip("\n") not in EXAMPLE] == []


def test_its_tables_have_every_member() -> None:
    declared = {name for name in vars(Algorithm) if not name.startswith("_")} - vars(Common).keys()
    assert members("member") == {name for name in declared if name not in Algorithm.model_fields}
    assert Algorithm.__abstractmethods__ < members("member")
    assert members("of the setup") == {name for name in vars(Setup) if not name.startswith("_")}
    assert members("of the job") == {field.name for field in dataclasses.fields(Job)}


@pytest.mark.parametrize("name", lockstep.algorithms.__all__)
def test_what_stands_under_one_name_is_there(name: str) -> None:
    assert lockstep.algorithms.__getattr__(name)


def test_the_rest_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lockstep.algorithms.nothing  # pyright: ignore[reportAttributeAccessIssue]
