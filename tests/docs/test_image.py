"""The steps of the CPU image, as a build would take them, without one: what .dockerignore leaves is
installed and runs.

Its base, apt and the user that it makes are not tried.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "deploy/cpu.Dockerfile").read_text()
BUILD = IMAGE[: IMAGE.index("\nFROM ", IMAGE.index("FROM ") + 1)].replace("\\\n", " ")
STEPS = [
    re.sub(r"--mount=\S+", "", step) for step in re.findall(r"^RUN (.+)$", BUILD, re.MULTILINE)
]


def copy_context(to: Path) -> None:
    """Copies what .dockerignore, a list of what is kept, sends to a build."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        source = ROOT / line.removeprefix("!")
        if line.startswith("!") and source.is_dir():
            shutil.copytree(source, to / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif line.startswith("!"):
            shutil.copy(source, to)


def test_docker_build_context_has_every_installed_file_and_no_tests(tmp_path: Path) -> None:
    copy_context(tmp_path)
    words = [word for step in STEPS for word in shlex.split(step)]
    installed = {word for word in words if (ROOT / word).exists()}
    for name in ("pyproject.toml", "README.md", "lockstep/__init__.py", *installed):
        assert (tmp_path / name).exists(), name
    assert not (tmp_path / "tests").exists()
    assert len(STEPS) == 2


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_packages_installed_by_cpu_image_steps_can_train(tmp_path: Path) -> None:
    home, source, work = tmp_path / "opt", tmp_path / "src", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    copy_context(source)
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    plain["PATH"] = f"{Path(sys.executable).resolve().parent}:{plain['PATH']}"
    for step in STEPS:
        subprocess.run(
            shlex.split(step.replace("/opt/lockstep", str(home))), cwd=source, env=plain, check=True
        )
    shutil.rmtree(source)
    inside = plain | {"PATH": f"{home / 'bin'}:{plain['PATH']}"}
    [train] = re.findall(r"^#.* lockstep:cpu (lockstep .+)$", IMAGE, re.MULTILINE)
    for command in ("lockstep --help", "pip check", train):
        subprocess.run(shlex.split(command), cwd=work, env=inside, check=True)
    assert list(work.glob("runs/*/certificate.json"))
