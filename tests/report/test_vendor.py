"""Files of others lie in the package as their authors published them, and go into the wheel."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENDOR = ROOT / "lockstep/report/page/vendor"


def test_vendored_files_match_hashes_in_readme() -> None:
    listed = dict(
        re.findall(
            r"^\| `(\S+)` \| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE
        )
    )
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    there.pop("README.md")
    assert listed == there
    assert "1.6.32" in (VENDOR / "README.md").read_text()
    assert (
        (VENDOR / "uPlot.iife.min.js")
        .read_text()
        .startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
    )
