"""What tests of conversions share."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversions import Convert

from lockstep.config.foreign_recipe import convert_file, validate
from lockstep.foreign.convert import Converted


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """Writes a config to a file, converts it, and loads the recipe."""

    def run(name: str, text: str, **words: str) -> Converted:
        path = tmp_path / name
        path.write_text(text)
        converted = convert_file(path, **words)
        validate(converted)
        return converted

    return run
