"""Runs that begin with a model which another process is training."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace import furnish

from lockstep.config.loading import load_recipe
from lockstep.run.folder.files import FolderInUseError, lock_folder
from lockstep.run.train import train_recipe

pytestmark = pytest.mark.full

LATER = "base: own.yaml\nmodel: {path: null, from_recipe: ./sft.yaml}\n"


@pytest.fixture
def here(in_tmp: Path) -> Path:
    furnish(in_tmp)
    (in_tmp / "later.yaml").write_text(LATER)
    return in_tmp


def test_run_is_rejected_while_other_process_trains_its_warm_start(here: Path) -> None:
    Path("run").mkdir()
    with (
        lock_folder(Path("run")),
        pytest.raises(FolderInUseError, match="run is in use by another process; wait"),
    ):
        train_recipe(load_recipe("later.yaml", ["run.folder=a"]))
    assert not Path("a").exists()
