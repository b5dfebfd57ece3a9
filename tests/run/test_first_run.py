"""The words of a run that trains another one first, from its first line to the paths at its end."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from tiny_recipe import RECIPE
from workspace import SFT, furnish

from lockstep.cli import main
from lockstep.command_line import command
from lockstep.config.loading import load
from lockstep.report.summary import PAGE
from lockstep.run.train import train

LATER = "base: own.yaml\nmodel: {path: null, from_recipe: ./sft.yaml}\nrun: {folder: later}\n"


@pytest.fixture
def here(in_tmp: Path) -> Path:
    furnish(in_tmp)
    (in_tmp / "later.yaml").write_text(LATER)
    return in_tmp


def test_stages_are_named_with_what_they_are_for_and_only_the_last_is_summed_up(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "later.yaml"]) == 0
    shown = capsys.readouterr()
    told = [line for line in shown.err.splitlines() if line.startswith("stage")]
    assert told == [
        "stage 1 of 2: sft, which learns to answer as the demonstrations do; later begins with its model",
        "stage 1 of 2 is done: run/final",
        "stage 2 of 2: later, which learns from the rewards of its own answers, with a critic that predicts them",
    ]
    assert shown.out.count("run: ") == 1
    assert shown.out.splitlines()[-3:] == [
        "run: later",
        "report: later/report.html (opens in a browser)",
        "model: later/final (opens with transformers: see its README.md)",
    ]
    assert main(["train", "later.yaml", "run.folder=again", "seed=0"]) == 0
    assert "stage" not in capsys.readouterr().err, "its model is there already"


def test_a_report_that_cannot_be_written_fails_no_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = ["train", "own.yaml", "run.max_steps=2"]
    assert main([*begun, "run.max_time_s=0.01"]) == 75
    Path("run", PAGE).mkdir()
    capsys.readouterr()
    assert main(begun) == 0
    shown = capsys.readouterr()
    again = command("report", "run")
    (note,) = (line for line in shown.err.splitlines() if "the report was not written" in line)
    assert "but the run is whole: " in note
    assert note.endswith(f"; `{again}` tries again")
    assert f"report: not written; {again} does that" in shown.out
    Path("run", PAGE).rmdir()
    assert main(shlex.split(again)[1:]) == 0, "the command works as it is shown"


@pytest.mark.parametrize(("options", "steps"), [([], [5]), (["data.shuffle=true"], [])])
def test_a_loss_that_rises_on_purpose_is_explained_at_that_step(
    here: Path, capsys: pytest.CaptureFixture[str], options: list[str], steps: list[int]
) -> None:
    task = {"train_questions": 20, "validation_questions": 4, "demonstrations": 32, "direct_from": 0.55}
    made = SFT | {"model": RECIPE["model"], "run": {"max_steps": 8, "folder": "run"}}
    made |= {"data": {**RECIPE["data"], "task": {"name": "arithmetic", **task}, "shuffle": False}}
    Path("made.yaml").write_text(yaml.safe_dump(made))
    train(load("made.yaml", options))
    told = [line for line in capsys.readouterr().err.splitlines() if "the loss rises from here on" in line]
    assert [int(line.split()[1].strip(":")) for line in told] == steps, told
    assert all("60% of the questions are now answered directly" in line for line in told)
