"""The wheel holds all that a run needs: built, installed apart from the checkout, and used from
there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

pytest.importorskip(
    "setuptools", reason="needs setuptools to build a wheel without the network: pip install it"
)

ROOT = Path(__file__).parents[1]
PACKAGES = ("lockstep", "lockstep_logprobs", "lockstep_doctor", "lockstep_convert")
RUN = ("sft_arithmetic", "run.max_steps=1", "run.folder=run", "data.task.demonstrations=128")
Lockstep = Callable[..., str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel is installed."""
    made = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = made / "source"
    for folder in PACKAGES:
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.pyi")
        )
    (source / ".ci").mkdir()
    for name in ("pyproject.toml", "setup.py", ".ci/face.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(made), str(source)],
        check=True,
    )
    [wheel] = made.glob("*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(made / "site"), str(wheel)], check=True
    )
    return made / "site"


@pytest.fixture(scope="module")
def installed(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Lockstep:
    """Runs the `lockstep` of the wheel in an empty folder; returns what it prints."""
    empty = tmp_path_factory.mktemp("empty")
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import lockstep; print(lockstep.__file__)").strip()
    assert Path(where).is_relative_to(site)
    return lambda *arguments: run("-m", "lockstep", *arguments)


def test_every_recipe_is_in_the_wheel(installed: Lockstep) -> None:
    listed = {line.split()[0] for line in installed("config").splitlines()}
    assert listed == {
        path.stem
        for folder in ("lockstep", "lockstep_doctor")
        for path in (ROOT / folder).rglob("recipes/*.yaml")
    }


def test_the_wheel_starts_trains_and_reports(installed: Lockstep) -> None:
    assert "can start" in installed("train", "ppo_arithmetic", "--dry-run")
    assert "final" in installed("train", *RUN)
    assert "report.html" in installed("report", "run")
    assert "prompts" in installed("config", "doctor")


def test_wheel_has_package_metadata_and_type_stubs(site: Path) -> None:
    assert all((site / package / "py.typed").is_file() for package in PACKAGES)
    assert "class PPOOptions(TypedDict" in (site / "lockstep/api/options.pyi").read_text()
    assert "Unpack[PPOOptions]" in (site / "lockstep/api/algorithms.pyi").read_text()
    [found] = distributions(path=[str(site)])
    about = found.metadata
    assert about["Name"] == "lockstep-rl"
    assert all(
        about[name]
        for name in ("Summary", "Author", "Keywords", "License-Expression", "Requires-Python")
    )
    assert "Typing :: Typed" in (about.get_all("Classifier") or [])
    assert "lockstep train" in (about["Description"] or ""), "README.md is its description"


def test_installed_wheel_can_convert_trl_options(installed: Lockstep) -> None:
    words = (
        "--model_name_or_path",
        "m",
        "--dataset_name",
        "./rows.jsonl",
        "--max_prompt_length",
        "8",
    )
    steps = ("--lr_scheduler_type", "constant", "--max_steps", "1")
    assert "sft:" in installed(
        "convert", "--from", "trl", "--algorithm", "sft", "--", *words, *steps
    )
