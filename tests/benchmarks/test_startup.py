"""What the start of a command costs is measured with its children, and a command that fails is no figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import startup

BURNING = "import time\nwhile time.process_time() < 0.5: pass"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURNING!r}], check=True)"


def test_the_table_has_each_command_twice_beside_the_import(capsys: pytest.CaptureFixture[str]) -> None:
    startup.main(["--repeats", "1"], ["--help"])
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert rows == ["| `lockstep --help`, the first time", "| `lockstep --help`, again"]


def test_children_count_and_nothing_is_left(tmp_path: Path) -> None:
    assert startup.cpu_seconds(["-c", IN_A_CHILD], tmp_path) >= 0.5
    assert not list(tmp_path.iterdir())


def test_a_command_that_fails_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with status 2:\nno such luck"):
        startup.cpu_seconds(["-c", "import sys; print('no such luck', file=sys.stderr); sys.exit(2)"], tmp_path)


def test_the_package_of_this_working_tree_is_measured(tmp_path: Path) -> None:
    where = f"import lockstep; assert lockstep.__file__.startswith({str(startup.ROOT)!r}), lockstep.__file__"
    startup.cpu_seconds(["-c", where], tmp_path)
