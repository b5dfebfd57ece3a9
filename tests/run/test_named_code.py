"""Code that a recipe names is named before it is imported, noted in the run, and compared when the run is read."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.config import EnvironmentSection, registry
from lockstep.config.loading import load_run
from lockstep.config.named_code import CODE
from lockstep.config.user_code import find_file
from lockstep.helpers import process
from lockstep.rollouts.episodes import EnvironmentFault, Episodes

FAILS = "import os\nos.write(2, b'imported\\n')\nraise ValueError('no')\n"


WORLD = EnvironmentSection(class_name="world.py:World", max_turns=1, max_tokens=1)


def unheard(text: object, last: int) -> list[int]:
    raise NotImplementedError


def named(option: str, reference: str) -> str:
    """The note of a file, and what the file itself says when it is imported."""
    file = Path(reference.partition(":")[0])
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return f"note: {option} {reference} runs {file.resolve()} (sha256 {digest})\nimported\n"


@pytest.mark.usefixtures("in_tmp")
def test_an_algorithm_is_named_before_it_is_imported(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(FAILS)
    with pytest.raises(ValueError, match="cannot be imported"):
        registry.find("mine.py:Mine")
    assert capfd.readouterr().err == named("algorithm", "mine.py:Mine")
    registry.find("ppo")
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("in_tmp")
def test_an_environment_is_named_before_it_is_imported(capfd: pytest.CaptureFixture[str]) -> None:
    Path("world.py").write_text(FAILS)
    with pytest.raises(EnvironmentFault, match="cannot be imported"):
        Episodes(WORLD, (), str, lambda tools: unheard, print)
    said = capfd.readouterr()
    assert (said.err + said.out).replace("imported\n", "") + "imported\n" == named(
        "environment.class_name", "world.py:World"
    )


@pytest.mark.usefixtures("in_tmp")
def test_an_environment_that_sleeps_at_import_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("world.py").write_text("import time\ntime.sleep(1000)")
    monkeypatch.setattr(process, "_SILENCE_S", 0.2)
    monkeypatch.setattr(process, "_START_S", 1.0)
    with pytest.raises(EnvironmentFault, match=r"world\.py:World: importing it takes too long"):
        Episodes(WORLD, (), str, lambda tools: unheard, print)
    said = "note: importing environment.class_name world.py:World takes long; it is ended after 1 s\n"
    assert said in capsys.readouterr().err


def test_a_run_notes_its_code_and_says_where_it_has_changed(
    run: Callable[..., list[dict[str, Any]]], capfd: pytest.CaptureFixture[str]
) -> None:
    run("run.max_steps=1")
    digest = hashlib.sha256(Path("rewards.py").read_bytes()).hexdigest()
    noted = json.loads(Path("run", CODE).read_text())
    assert noted == {"reward.function": {"file": str(Path("rewards.py").resolve()), "sha256": digest}}
    capfd.readouterr()
    load_run(Path("run"))
    assert capfd.readouterr().err == ""
    with Path("rewards.py").open("a") as file:
        file.write("# another\n")
    load_run(Path("run"))
    assert (
        f"note: reward.function has changed since run was made (sha256 was {digest[:16]}): " in capfd.readouterr().err
    )
    Path("rewards.py").write_text("open('ran', 'w')\n")  # commands that need no reward import none
    Path("rows.jsonl").write_text('{"question": "What is 2 + 3?"}\n')
    assert main(["report", "run"]) == main(["generate", "run", "rows.jsonl"]) == 0
    assert not Path("ran").exists()
    capfd.readouterr()
    shutil.copytree("run", "older")
    Path("older", CODE).unlink()
    load_run(Path("older"))
    assert capfd.readouterr().err == ""
    Path("older", CODE).write_text("[1]")
    load_run(Path("older"))
    unknown = f"cannot be read, so whether code has changed since {Path('older')} was made is not known"
    assert unknown in capfd.readouterr().err
    shutil.copytree("older", "piped", ignore=shutil.ignore_patterns(CODE))
    os.mkfifo(Path("piped", CODE))  # whose reader would wait for ever
    load_run(Path("piped"))
    assert unknown.replace("older", "piped") in capfd.readouterr().err


def test_the_file_that_is_named_is_the_one_that_an_import_finds(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_tmp / "named_twice").mkdir()
    for file in ("named_twice/__init__.py", "named_twice.py"):
        (in_tmp / file).write_text("")
    monkeypatch.syspath_prepend(in_tmp)
    imported = importlib.import_module("named_twice").__file__
    assert imported is not None
    assert find_file("named_twice:f") == Path(imported)
