"""The pictures of docs/: lines are not filled, and a recording holds what a command printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs/pictures").glob("*.svg"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_lines_of_pictures_are_drawn_without_fill(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}polyline")
    for name in {line.get("class", "") for line in lines}:
        assert re.search(rf"\.{name} {{[^}}]*fill: none", text), name


@pytest.mark.parametrize(("how", "animated"), [([], True), (["--still"], False)])
def test_recording_holds_every_line_of_a_command(
    how: list[str], animated: bool, tmp_path: Path
) -> None:
    program = "print('<first>'); print('\\n'.join(map(str, range(30))))"
    command = [str(ROOT / "scripts/record_run.py"), "--out", "a.svg", *how, sys.executable, "-c"]
    subprocess.run([sys.executable, *command, program], cwd=tmp_path, check=True)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    shown = [one.text for one in ElementTree.fromstring(text).iter() if one.tag.endswith("}text")]
    assert shown[-31:] == ["<first>", *map(str, range(30))]
    assert ("animation: print" in text) == animated
