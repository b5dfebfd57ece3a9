"""Code that a recipe names is named before it is imported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lockstep.config import registry

FAILS = "import os\nos.write(2, b'imported\\n')\nraise ValueError('no')\n"


def named(option: str, reference: str) -> str:
    """The note of a file, and what the file itself says when it is imported."""
    file = Path(reference.partition(":")[0])
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return f"note: {option} {reference} runs {file.resolve()} (sha256 {digest})\nimported\n"


@pytest.mark.usefixtures("in_tmp")
def test_algorithm_file_and_digest_are_printed_before_import(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(FAILS)
    with pytest.raises(ValueError, match="cannot be imported"):
        registry.find_algorithm("mine.py:Mine")
    assert capfd.readouterr().err == named("algorithm", "mine.py:Mine")
    registry.find_algorithm("ppo")
    assert capfd.readouterr().err == ""
