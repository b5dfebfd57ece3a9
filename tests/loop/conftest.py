"""Runs of a small recipe, and a workplace that the long ones share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipe import RECIPE, REWARDS

from lockstep.config.loading import load
from lockstep.report.log import read_metrics
from lockstep.run.train import train


@pytest.fixture
def run(in_tmp: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs the small recipe with overrides in an empty folder; returns the rows of metrics.jsonl."""
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))

    def go(*overrides: str) -> list[dict[str, Any]]:
        return read_metrics(train(load("tiny.yaml", list(overrides))))

    return go


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all that begins with the shipped warm start, so that each seed's is trained once."""
    return tmp_path_factory.mktemp("workplace")
