"""Folders of small models for the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tiny_models import model_folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`models(architecture, seed=0)` is a Hugging Face folder."""
    return partial(model_folder, tmp_path_factory.mktemp("models"))
