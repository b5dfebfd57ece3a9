"""Code that a recipe names is named before it is imported."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import pytest

from lockstep.config import registry
from lockstep.config.user_code import find_file
from lockstep.environments.options import EnvironmentSection
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


def test_the_file_that_is_named_is_the_one_that_an_import_finds(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_tmp / "named_twice").mkdir()
    for file in ("named_twice/__init__.py", "named_twice.py"):
        (in_tmp / file).write_text("")
    monkeypatch.syspath_prepend(in_tmp)
    imported = importlib.import_module("named_twice").__file__
    assert imported is not None
    assert find_file("named_twice:f") == Path(imported)
