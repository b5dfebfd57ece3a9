"""`train` says what the doctor has said of its model, and `run.require_doctor` insists on a report that passed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from workspace import furnish

from lockstep.cli import main
from lockstep.config.loading import RecipeError, load
from lockstep.models.digests import digest_weights

REQUIRED = ["train", "own.yaml", "run.require_doctor=true"]
COMMAND = "`lockstep doctor table model backends=[hf,torch] learner.dtype=fp32` makes one"


@pytest.fixture
def furnished(in_tmp: Path) -> Path:
    furnish(in_tmp)
    return in_tmp


def report(name: str, seconds: int = 0, **said: Any) -> None:
    """Writes a report on the model as it is now, younger by `seconds`."""
    folder = Path("doctor", name)
    folder.mkdir(parents=True)
    tree: dict[str, Any] = {
        "schema": "lockstep.doctor.table/1",
        "verdict": "PASS",
        "model": {"path": "elsewhere", "digest": digest_weights(Path("model"))},
        "backends": {"hf": {}, "torch": {}},
        "recipe": {"learner": {"device": "cpu", "dtype": "fp32"}},
        "cells": [],
    }
    (folder / "report.json").write_text(json.dumps(tree | said))
    os.utime(folder / "report.json", (10_000 + seconds, 10_000 + seconds))


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(REQUIRED) == 2
    assert not Path("run").exists()
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told


@pytest.mark.usefixtures("furnished")
def test_without_a_report_it_refuses_and_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys)
    missing = "run.require_doctor: there is no doctor's report on model with sampler torch in fp32 in doctor/; "
    assert missing + COMMAND in told


@pytest.mark.usefixtures("furnished")
@pytest.mark.parametrize(
    "said",
    [
        {"backends": {"hf": {}, "vllm": {}}},
        {"model": {"path": "model", "digest": "0" * 16}},
        {"recipe": {"learner": {"dtype": "bf16"}}},
        {"schema": "lockstep.doctor.table/2"},
        {"verdict": None},
    ],
)
def test_a_report_on_something_else_does_not_count(said: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    report("other", **said)
    assert COMMAND in refusal(capsys)


@pytest.mark.usefixtures("furnished")
def test_the_newest_report_counts(capsys: pytest.CaptureFixture[str]) -> None:
    report("old", verdict="PASS")
    report("new", seconds=1, verdict="FAIL")
    assert "says FAIL: doctor/new/report.json; mend what it names, and run `lockstep doctor" in refusal(capsys)
    report("newest", seconds=2)
    assert main(REQUIRED) == 0
    assert (
        "the doctor has passed model with sampler torch in fp32: doctor/newest/report.json" in capsys.readouterr().err
    )


@pytest.mark.usefixtures("furnished")
def test_other_weights_need_another_report(capsys: pytest.CaptureFixture[str]) -> None:
    report("first")
    weights = Path("model/model.safetensors")
    bits = bytearray(weights.read_bytes())
    bits[-1] ^= 1
    weights.write_bytes(bits)
    assert COMMAND in refusal(capsys)


@pytest.mark.usefixtures("furnished")
def test_where_it_is_not_required_it_is_only_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "own.yaml"]) == 0
    assert COMMAND in capsys.readouterr().err


@pytest.mark.usefixtures("furnished")
def test_a_dry_run_says_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REQUIRED, "--dry-run"]) == 2
    assert COMMAND in capsys.readouterr().err
    report("first")
    assert main([*REQUIRED, "--dry-run"]) == 0
    assert "the doctor has passed model" in capsys.readouterr().out


@pytest.mark.usefixtures("furnished")
def test_what_no_report_can_be_about_is_refused_with_the_recipe() -> None:
    for recipe, sentence in (("tiny.yaml", "a model that is made only now"), ("sft.yaml", "nothing samples here")):
        with pytest.raises(RecipeError, match=sentence):
            load(recipe, ["run.require_doctor=true"])


@pytest.mark.usefixtures("furnished")
def test_it_is_no_part_of_what_makes_a_run() -> None:
    assert load("own.yaml").digest == load("own.yaml", ["run.require_doctor=true"]).digest
