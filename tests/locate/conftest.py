"""Models of the tests of taps, written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from located import write_family


@pytest.fixture(scope="session")
def located_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a model of a family once; returns its folder."""
    return partial(write_family, tmp_path_factory.mktemp("families"))
