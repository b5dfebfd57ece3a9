"""A task of one's own is one file: it is trained on, dry-run and explained like one that ships.

And runs of before.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from tiny_recipe import RECIPE, REWARDS

from lockstep.cli import main
from lockstep.report.log import read_metrics, read_recipe

MY_TASK = '''
from pathlib import Path

from pydantic import Field, PositiveInt

from lockstep.tasks.base import Task, TaskFiles, permute, write_rows


class Doubles(Task):
    """Numbers to double."""

    shared = ("highest", "seed")
    highest: PositiveInt = Field(description="largest number")
    seed: int = Field(default=0, description="of the order")

    def write(self, folder: Path) -> TaskFiles:
        rows = [{"question": f"twice {n}?", "answer": str(2 * n)} for n in permute(self.highest, self.seed)]
        files = TaskFiles(folder / "train.jsonl", folder / "validation.jsonl")
        write_rows(files.train, rows[8:])
        write_rows(files.validation, rows[:8])
        return files
'''


@pytest.fixture
def here(in_tmp: Path) -> Path:
    """A folder with a recipe on a task of its own."""
    recipe = copy.deepcopy(RECIPE)
    recipe["data"]["task"] = {"name": "my_task.py:Doubles", "highest": 40}
    recipe["run"]["max_steps"] = 1
    Path("my_task.py").write_text(MY_TASK)
    Path("rewards.py").write_text(REWARDS)
    Path("own.yaml").write_text(yaml.safe_dump(recipe))
    return in_tmp


def test_custom_task_can_be_dry_run_trained_and_explained(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "own.yaml", "--dry-run"]) == 0
    assert "32" in capsys.readouterr().out
    assert not Path("run").exists()
    assert main(["train", "own.yaml"]) == 0
    assert any("train/reward" in row for row in read_metrics(Path("run")))
    assert Path("run/data/train.jsonl").read_text().count("twice") == 32
    assert read_recipe(Path("run"))["data"]["task"] == {
        "name": "my_task.py:Doubles",
        "highest": 40,
        "seed": 0,
    }
    assert main(["train", "own.yaml"]) == 0, "the same run, which is finished"
    capsys.readouterr()
    assert main(["config", "own.yaml", "data.task.highest"]) == 0
    assert "largest number" in capsys.readouterr().out


def test_unknown_option_of_custom_task_is_rejected_with_nearest_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "own.yaml", "data.task.higest=9"]) == 2
    assert (
        "unknown option data.task.higest; did you mean data.task.highest?"
        in capsys.readouterr().err
    )
