"""Commands that are shown to the user, under the name by which Lockstep was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.system.command_line import command


def start(monkeypatch: pytest.MonkeyPatch, program: str, path: Path) -> None:
    monkeypatch.setattr(sys, "argv", [program, "train", "mine"])
    monkeypatch.setenv("PATH", str(path))


def make_program(folder: Path) -> Path:
    folder.mkdir(parents=True)
    program = folder / "lockstep"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_a_command_has_the_name_that_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_program(tmp_path / "bin")
    start(monkeypatch, ".venv/bin/lockstep", tmp_path / "empty")
    assert command("report", Path("runs/a")) == ".venv/bin/lockstep report runs/a"
    start(monkeypatch, ".venv/bin/lockstep", program.parent)
    assert command("report", "runs/a") == ".venv/bin/lockstep report runs/a", "another lockstep is on the path"
    start(monkeypatch, str(program), program.parent)
    assert command("report", "runs/a") == "lockstep report runs/a", "a shell found it by its name"


def test_for_another_program_the_command_beside_its_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start(monkeypatch, "notebook.py", tmp_path / "empty")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    assert command("report", "a") == "lockstep report a", "none is installed beside it"
    program = make_program(tmp_path / "bin")
    assert command("report", "a") == f"{program} report a"


def test_what_is_shown_can_be_run() -> None:
    code = "from lockstep.system.command_line import command; print(command('config'))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    again = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
    assert "ppo_arithmetic" in again.stdout
