"""The block of Python of docs/guides/sweeps.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "sweeps.md"


@pytest.mark.full
@pytest.mark.usefixtures("in_tmp")
def test_a_sweep_from_python_has_a_row_for_each_group(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    found = names["found"]
    assert [row["state"] for row in found.table] == ["finished"] * 2
    assert len(found.runs) == 2
    assert {row["group"] for row in found.groups} == {"all"}
    assert "all train/" in capsys.readouterr().out
