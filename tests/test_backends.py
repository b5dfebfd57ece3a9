"""A training or inference backend is a folder with a declaration, and a line of the registry:
nothing else knows it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from inspect import isabstract
from pathlib import Path

import pytest

from lockstep.config import LearnerSection, SamplerSection
from lockstep.config.backends import INFERENCE, TRAINING, InferenceOptions, TrainingOptions
from lockstep.learners import backend as learners
from lockstep.samplers import backend as samplers

ROOT = Path(__file__).parent.parent
WINGS = {"learners": TRAINING, "samplers": INFERENCE}
FOLDERS = {
    file.parent.relative_to(ROOT).as_posix()
    for wing in WINGS
    for file in (ROOT / "lockstep" / wing).glob("*/backend.py")
}
NAMES = {folder.rpartition("/")[2] for folder in FOLDERS}
REGISTRY = "lockstep/config/backends.py"

EXCEPTIONS = {
    "lockstep/cluster/self_check.py": "it proves what Lockstep's own sampler decodes",
    "lockstep/cluster/judges.py": "a server judges through its client, and takes no weights",
    "lockstep/inference/eval_recipe.py": "a URL stands for a server that speaks OpenAI's protocol",
    "lockstep/run/folder/machine.py": "the version of a library",
}
"""Path → why this file may know a backend."""


def known(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of backends' folders that ask for a backend's name, or import from a folder
    that is not theirs.
    """
    if path == REGISTRY or path.startswith("lockstep_doctor/"):
        return
    own = next((folder for folder in FOLDERS if path.startswith(f"{folder}/")), None)
    for node in ast.walk(ast.parse(text)):
        named = {str(one.value) for one in looked_up(node) if isinstance(one, ast.Constant)} & NAMES
        if own is None and named and isinstance(node, ast.expr | ast.pattern):
            yield node.lineno, f"asks for {', '.join(sorted(named))}"
        for module in imported(node):
            folder = "/".join(module.split(".")[:3])
            if folder in FOLDERS - {own} and isinstance(node, ast.stmt):
                yield node.lineno, f"imports {module}"


def looked_up(node: ast.AST) -> Iterator[ast.AST]:
    """What a value is compared with, or looked up by, in a table or by a method such as `get`."""
    match node:
        case ast.Compare(left=left, comparators=others):
            for operand in (left, *others):
                yield from (
                    operand.elts
                    if isinstance(operand, ast.Tuple | ast.List | ast.Set)
                    else (operand,)
                )
        case ast.MatchValue(value=value) | ast.Subscript(slice=value):
            yield value
        case ast.Dict(keys=keys):
            yield from (key for key in keys if key is not None)
        case ast.Call(func=ast.Attribute(), args=args):
            yield from args
        case _:
            pass


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [f"{module}.{alias.name}" for alias in names]
        case _:
            return []


def test_code_outside_backend_folder_does_not_name_or_import_backend() -> None:
    said: dict[str, list[str]] = {}
    for file in sorted((ROOT / "lockstep").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        found = [
            f"{path}:{line}: {what}; declare it in backend.py"
            for line, what in known(path, file.read_text())
        ]
        said |= {path: found} if found else {}
    broken = [line for path, lines in said.items() if path not in EXCEPTIONS for line in lines]
    assert not broken, "\n" + "\n".join(broken)
    assert said.keys() == EXCEPTIONS.keys(), "an exception is not needed any more"


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("lockstep/run/a.py", "x = section.backend == 'vllm'\n", 1),
        ("lockstep/learners/base.py", "x = 1\ny = backend not in ('torch', 'jax')\n", 2),
        ("lockstep/config/a.py", "match self.backend:\n  case 'megatron' | 'x':\n    1\n", 2),
        ("lockstep/cluster/a.py", "BUILD = {'torch': 1}\n", 1),
        ("lockstep/plan/a.py", "x = sampler.get('openai')\n", 1),
        ("lockstep/plan/a.py", "x = sampler['openai']\n", 1),
        (
            "lockstep/run/a.py",
            "def f():\n  from lockstep.learners.torch.learner import TorchLearner\n",
            2,
        ),
        ("lockstep/run/a.py", "from lockstep.learners import torch\n", 1),
        ("lockstep/samplers/torch/a.py", "import lockstep.samplers.vllm.sampler\n", 1),
    ],
)
def test_backend_rule_reports_line_of_violation(path: str, text: str, line: int) -> None:
    assert [found for found, _ in known(path, text)] == [line]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("lockstep/samplers/vllm/a.py", "x = section.backend == 'vllm'\n"),
        ("lockstep/samplers/vllm/a.py", "from lockstep.samplers.vllm import worker\n"),
        (
            "lockstep/run/a.py",
            "from lockstep.learners.base import Learner\nfrom lockstep.samplers import backend\n",
        ),
        (
            "lockstep/run/a.py",
            "raise E('use sampler.backend=torch')\nx = find_backend(section).threads\n",
        ),
    ],
)
def test_backend_rule_accepts_allowed_code(path: str, text: str) -> None:
    assert not list(known(path, text))


def test_backend_folders_match_registry_entries() -> None:
    lines = {
        f"lockstep/{wing}/{name}"
        for wing, registry in WINGS.items()
        for name in registry.backend_names
    }
    assert lines == FOLDERS


def test_all_5_backend_declarations_load_without_importing_torch() -> None:
    code = (
        "import sys\nfrom lockstep.config.backends import INFERENCE, TRAINING\n"
        "assert len([*TRAINING.iterate_backends(), *INFERENCE.iterate_backends()]) == 5\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    "kind", [TrainingOptions, InferenceOptions, learners.TrainingBackend, samplers.InferenceBackend]
)
def test_backend_class_without_required_members_cannot_be_instantiated(kind: type) -> None:
    """Of a class that is marked final, a type checker says so beforehand."""
    assert isabstract(kind)
    with pytest.raises(TypeError, match="abstract"):
        type("Forgetful", (kind,), {})()


def test_find_backend_returns_backend_of_section_and_rejects_unknown_name() -> None:
    assert learners.find_backend(LearnerSection()).title == "torch"
    engine = samplers.find_backend(SamplerSection())
    assert engine is not None
    assert engine.threads == 1
    assert samplers.find_backend(SamplerSection().model_copy(update={"backend": "openai"})) is None
    with pytest.raises(KeyError, match="jax"):
        samplers.find_backend(SamplerSection().model_copy(update={"backend": "jax"}))
