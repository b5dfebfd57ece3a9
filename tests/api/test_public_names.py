"""The public names, pinned: a change here is a change that semantic versioning has to tell."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.algorithms.ppo.options import PPOSection
from lockstep.api import algorithms
from lockstep.config import registry

ROOT = Path(__file__).parents[2]


def test_public_names() -> None:
    assert lockstep.__all__ == [
        "DPO", "GRPO", "KTO", "ORPO", "PPO", "SFT", "Batch", "Distill", "Learner", "Loss",
        "Metrics", "OnlineDPO", "PolicyGradient", "RewardModel", "Run", "Sampler", "SamplingParams",
        "SelfRewarding", "SimPO", "Sweep", "Trainer", "close_all", "load", "losses", "objectives",
        "open_learner", "open_sampler", "rollout", "save", "sweep", "sync", "train", "trust",
    ]  # fmt: skip
    assert set(lockstep.__all__) <= set(dir(lockstep))


@pytest.mark.parametrize("name", lockstep.__all__)
def test_each_is_there_and_documented(name: str) -> None:
    found = vars(lockstep).get(name) or lockstep.__getattr__(name)
    assert found.__doc__


@pytest.mark.parametrize("package", ["losses", "objectives", "algorithms"])
def test_packages_export_what_they_name(package: str) -> None:
    module = importlib.import_module(f"lockstep.{package}")
    assert module.__all__
    for name in module.__all__:
        assert hasattr(module, name), name


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'PPO2'; it has Batch, DPO"):
        lockstep.__getattr__("PPO2")


def test_the_import_pulls_in_nothing_heavy() -> None:
    code = "import sys, lockstep; dir(lockstep); sys.exit(any(name in sys.modules for name in ('torch', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_option_of_a_recipe_has_a_type(tmp_path: Path) -> None:
    made = tmp_path / "options.pyi"
    subprocess.run([sys.executable, str(ROOT / ".ci/face.py"), str(made)], cwd=ROOT, check=True)
    classes = [each for each in ast.parse(made.read_text()).body if isinstance(each, ast.ClassDef)]
    typed = {each.name: {ast.unparse(line).partition(":")[0] for line in each.body[1:]} for each in classes}
    for trainer in (lockstep.PPO, lockstep.SFT, lockstep.KTO):
        recipe = registry.find(trainer.algorithm or "")
        assert recipe is not None
        names = recipe.model_fields.keys() - {"algorithm"}
        assert typed[f"{trainer.__name__}Options"] == names | {"train", "validation"}
    assert typed["PPOSectionKeys"] == PPOSection.model_fields.keys()
    stubs = ast.parse(made.with_name("algorithms.pyi").read_text()).body
    shipped = {each.__name__ for each in vars(algorithms).values() if getattr(each, "algorithm", None)}
    assert {each.name for each in stubs if isinstance(each, ast.ClassDef)} == shipped
