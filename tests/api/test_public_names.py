"""The public names, pinned: a change here is a change that semantic versioning has to tell."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep

ROOT = Path(__file__).parents[2]


def test_public_names() -> None:
    assert lockstep.__all__ == [
        "DPO", "GRPO", "KTO", "ORPO", "PPO", "SFT", "Batch", "Distill", "Learner", "Loss", "Metrics", "OnlineDPO",
        "RewardModel", "Run", "Sampler", "SamplingParams", "SelfRewarding", "SimPO", "Sweep", "Trainer", "close_all",
        "load", "losses", "objectives", "open_learner", "open_sampler", "rollout", "save", "sweep", "sync", "train",
        "trust",
    ]  # fmt: skip
    assert set(lockstep.__all__) <= set(dir(lockstep))


@pytest.mark.parametrize("name", lockstep.__all__)
def test_each_is_there_and_documented(name: str) -> None:
    found = vars(lockstep).get(name) or lockstep.__getattr__(name)
    assert found.__doc__


@pytest.mark.parametrize("package", ["losses", "objectives", "algorithms", "doctor"])
def test_packages_export_what_they_name(package: str) -> None:
    module = importlib.import_module(f"lockstep.{package}")
    for name in module.__all__:
        assert vars(module).get(name) or module.__getattr__(name)
    with pytest.raises(AttributeError, match=f"module 'lockstep.{package}' has no attribute 'nothing'; it has "):
        module.__getattr__("nothing")


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'PPO2'; it has Batch, DPO"):
        lockstep.__getattr__("PPO2")


def test_the_import_pulls_in_nothing_heavy() -> None:
    code = "import sys, lockstep; dir(lockstep); sys.exit(any(name in sys.modules for name in ('torch', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_typed_options_are_those_of_the_recipes(tmp_path: Path) -> None:
    file = ROOT / "lockstep/api/options.py"
    before = file.read_text()
    made = tmp_path / "options.py"
    command = [sys.executable, str(ROOT / ".ci/face.py"), str(made)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert made.read_text() == before, "the options of a recipe have changed; run `make face`"
