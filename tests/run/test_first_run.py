"""Runs that train another one first: what they print, and when they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from workspace import furnish

from lockstep.cli import main
from lockstep.config.loading import load_recipe
from lockstep.run.folder.files import FolderInUseError, lock_folder
from lockstep.run.train import train_recipe


@pytest.fixture
def here(in_tmp: Path) -> Path:
    furnish(in_tmp)
    (in_tmp / "later.yaml").write_text(
        "base: own.yaml\nmodel: {path: null, from_recipe: ./sft.yaml}\nrun: {folder: later}\n"
    )
    return in_tmp


def test_warm_start_stages_are_announced_and_only_last_is_summarized(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "later.yaml"]) == 0
    shown = capsys.readouterr()
    told = [line for line in shown.err.splitlines() if line.startswith("stage")]
    assert told == [
        "stage 1 of 2: sft; later starts from its model",
        "stage 1 of 2 is done: run/final",
        "stage 2 of 2: later",
    ]
    assert shown.out.count("run: ") == 1
    assert shown.out.splitlines()[-3:] == [
        "run: later",
        "report: later/report.html (opens in a browser)",
        "model: later/final (loads with transformers; see its README.md)",
    ]
    assert main(["train", "later.yaml", "run.folder=again", "seed=0"]) == 0
    assert "stage" not in capsys.readouterr().err, "its model is there already"


@pytest.mark.full
def test_run_is_rejected_while_other_process_trains_its_warm_start(here: Path) -> None:
    Path("run").mkdir()
    with (
        lock_folder(Path("run")),
        pytest.raises(FolderInUseError, match="run is in use by another process; wait"),
    ):
        train_recipe(load_recipe("later.yaml", ["run.folder=a"]))
    assert not Path("a").exists()
