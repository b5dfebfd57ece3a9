"""The public names, pinned: a change here is a change that semantic versioning has to tell."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from doctest import DocTestParser
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.algorithms.ppo.options import PPOSection
from lockstep.api import algorithms
from lockstep.config import registry

ROOT = Path(__file__).parents[2]


def test_lockstep_all_lists_exactly_the_public_names() -> None:
    assert lockstep.__all__ == [
        "DPO", "GRPO", "KTO", "ORPO", "PPO", "SFT", "AgreementSummary", "Batch", "Distill",
        "Learner", "Loss", "Metrics", "OnlineDPO", "PolicyGradient", "RewardModel", "Rollouts",
        "Run", "Sampler", "SamplingParams", "SelfRewarding", "SimPO", "Sweep", "SyncProof",
        "TextSampler", "Trainer", "close_all", "load", "losses", "objectives", "open_learner",
        "open_sampler", "rollout", "sample", "save", "sweep", "sync", "train", "trust",
    ]  # fmt: skip
    assert set(lockstep.__all__) <= set(dir(lockstep))


@pytest.mark.parametrize("name", lockstep.__all__)
def test_every_public_name_exists_and_has_docstring(name: str) -> None:
    found = vars(lockstep).get(name) or lockstep.__getattr__(name)
    assert found.__doc__


def list_returned(found: object) -> Iterator[tuple[str, str]]:
    """What a public function, or the public members of a public class, return: their names and
    annotations.
    """
    members = (
        [member for name, member in vars(found).items() if name[0] != "_"]
        if isinstance(found, type)
        else [found]
    )
    for member in members:
        function: Any = (
            member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        )
        if inspect.isfunction(function) and "return" in function.__annotations__:
            yield function.__qualname__, str(function.__annotations__["return"])
    if isinstance(found, type):
        yield from (
            (f"{found.__name__}.{name}", str(kind))
            for name, kind in inspect.get_annotations(found).items()
        )


def test_public_functions_return_only_public_types() -> None:
    """But for members that only the author of a backend reads."""
    known = {
        *lockstep.__all__,
        *lockstep.losses.__all__,
        *dir(builtins),
        *vars(typing),
        "Path",
        "Tensor",
        "torch",
    }
    backend = {
        "Learner.sender",
        "Sampler.pieces",
        "Sampler.load_weights",
        "Batch.values",
        "Batch.places",
    }
    backend |= {
        "Rollouts.prompts",
        "Rollouts.terms",
        "TextSampler.source",
        "TextSampler.computation",
    }
    sections = {"PolicyGradient.options", "PolicyGradient.grpo"}
    unknown = {
        where
        for name in lockstep.__all__
        for where, annotation in list_returned(lockstep.__getattr__(name))
        if not where.rpartition(".")[2].startswith("_")
        if {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}
        - known
    }
    assert unknown == backend | sections


@pytest.mark.parametrize("package", ["losses", "objectives", "algorithms"])
def test_packages_define_every_name_in_their_all(package: str) -> None:
    module = importlib.import_module(f"lockstep.{package}")
    assert module.__all__
    for name in module.__all__:
        assert hasattr(module, name), name


def test_unknown_attribute_error_lists_available_names() -> None:
    with pytest.raises(
        AttributeError, match="has no attribute 'PPO2'; it has AgreementSummary, Batch, DPO"
    ):
        lockstep.__getattr__("PPO2")


@pytest.mark.parametrize(
    "name", [name for name, kind in vars(algorithms).items() if getattr(kind, "algorithm", None)]
)
def test_algorithm_docstring_example_is_a_valid_recipe(name: str) -> None:
    [example] = DocTestParser().get_examples(vars(algorithms)[name].__doc__)
    built = example.source.strip().removesuffix(".train()")
    assert eval(built, {"lockstep": lockstep}).describe()


def test_importing_lockstep_does_not_import_torch_or_pydantic() -> None:
    code = (
        "import sys, lockstep; dir(lockstep); sys.exit(any(name in sys.modules for name in "
        "('torch', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_option_of_a_recipe_has_a_type(tmp_path: Path) -> None:
    made = tmp_path / "options.pyi"
    subprocess.run([sys.executable, str(ROOT / ".ci/face.py"), str(made)], cwd=ROOT, check=True)
    classes = [each for each in ast.parse(made.read_text()).body if isinstance(each, ast.ClassDef)]
    typed = {
        each.name: {ast.unparse(line).partition(":")[0] for line in each.body[1:]}
        for each in classes
    }
    for trainer in (lockstep.PPO, lockstep.SFT, lockstep.KTO):
        recipe = registry.find_algorithm(trainer.algorithm or "")
        assert recipe is not None
        names = recipe.model_fields.keys() - {"algorithm"}
        assert typed[f"{trainer.__name__}Options"] == names | {"train", "validation"}
    assert typed["PPOSectionKeys"] == PPOSection.model_fields.keys()
    stubs = ast.parse(made.with_name("algorithms.pyi").read_text()).body
    shipped = {
        each.__name__ for each in vars(algorithms).values() if getattr(each, "algorithm", None)
    }
    assert {each.name for each in stubs if isinstance(each, ast.ClassDef)} == shipped
