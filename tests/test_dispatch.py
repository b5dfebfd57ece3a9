"""Every decision over a closed set of choices names all of them: a new one is a type error, not
another's behavior.

`assert_never` at the end of a `match` makes the type checker ask for every choice. These tests see
to it that decisions are written like that: by a recipe's choices (each `Literal` in its sections),
by heads, and by kinds of recipes.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from lockstep.cluster.specs import SamplerSpec
from lockstep.config import Computation, SamplerSection, Section, registry
from lockstep.config.backends import INFERENCE, TRAINING
from lockstep.core.types import HeadKind

PACKAGE = Path(__file__).parent.parent / "lockstep"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "doctor" not in path.parts]
"""All but the doctor's, which decides by sides and verdicts of its own."""

EXCEPTIONS = {
    "process_defaults.py: share == 'max'": "the kernel's word for no quota",
    "watch.py: evidence.drift_cause == 'text'": "a finding of the watch",
    "on_cpu.py: device == 'cuda'": "what Megatron asks of torch, not a recipe's device",
    "learner_group.py: device == 'cuda'": "torch's own word for a device that was resolved",
    "setup.py: read_field(prompt.row, field) == 'math'": (
        "what a row says, which a rule has checked"
    ),
    "heads.py: 'forward' in vars(head)": "a method, not a divergence",
    "convert.py: options.values.get('grpo.loss') == 'cispo'": (
        "the recipe refuses clip there, and nowhere else"
    ),
    "overlay.py: taken.get('type') == 'by_row'": (
        "the one type of reward that any option may belong to"
    ),
    "row_rules.py: named == 'math'": "what a row says, which a rule has checked",
}


def literals(annotation: Any) -> Iterator[tuple[str, ...]]:
    """The choices within an annotation, where there are several."""
    if get_origin(annotation) is Literal:
        if len(get_args(annotation)) > 1:
            yield get_args(annotation)
        return
    for inner in get_args(annotation):
        yield from literals(inner)


def sections(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
        for field in annotation.model_fields.values():
            yield from sections(field.annotation)
    for inner in get_args(annotation):
        yield from sections(inner)


def choices() -> set[str]:
    """All that a recipe can choose from, and the heads."""
    found = {section for _, recipe in registry.iterate_algorithms() for section in sections(recipe)}
    annotations = [field.annotation for section in found for field in section.model_fields.values()]
    named = {
        name
        for annotation in [*annotations, HeadKind]
        for names in literals(annotation)
        for name in names
    }
    return named | {*TRAINING.backend_names, *INFERENCE.backend_names}


CHOICES = choices()


def constants(node: ast.expr) -> list[object]:
    """What stands in a comparison as it is, or in a display within it."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return [value for element in node.elts for value in constants(element)]
    return []


def is_validator(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return text == "rule" or "_validator" in text


def validators(tree: ast.Module) -> set[ast.AST]:
    """All within validators of sections, and `idle_options`, which one of them reads: what they can
    do is refuse.
    """
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    own = [one for one in methods if any(map(is_validator, one.decorator_list))]
    own += [one for one in methods if one.name == "idle_options"]
    return {node for method in own for node in ast.walk(method)}


def compared(tree: ast.Module) -> Iterator[str]:
    """Comparisons with a choice."""
    refusing = validators(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or node in refusing:
            continue
        operands = [node.left, *node.comparators]
        operands = [
            one for one in operands if not any(value in CHOICES for value in constants(one))
        ]
        others = [ast.unparse(operand) for operand in operands]
        of_torch = any(other.endswith((".type", "device_type")) for other in others)
        of_engines = any("reason" in other for other in others)  # why a response ended
        if len(operands) <= len(node.comparators) and not of_torch and not of_engines:
            yield ast.unparse(node)


def is_recipe(node: ast.AST) -> bool:
    return bool(re.search(r"\w+Recipe\b", ast.unparse(node)))


def matched(tree: ast.Module) -> Iterator[str]:
    """Matches on choices, or on kinds of recipes, that do not end in `assert_never`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Match):
            continue
        values = [value for case in node.cases for value in ast.walk(case.pattern)]
        chosen = any(
            isinstance(one, ast.MatchValue) and set(constants(one.value)) & CHOICES
            for one in values
        )
        kind = any(isinstance(one, ast.MatchClass) and is_recipe(one.cls) for one in values)
        of_engines = "reason" in ast.unparse(node.subject)
        if (
            (chosen or kind)
            and not of_engines
            and "assert_never(" not in ast.unparse(node.cases[-1].body[0])
        ):
            yield f"match {ast.unparse(node.subject)}"


def asked(tree: ast.Module) -> Iterator[str]:
    """Questions for a recipe's kind whose answer decides, rather than being insisted on."""
    guards = [
        node.test
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
    ]
    guards += [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    insisted = {node for guard in guards for node in ast.walk(guard)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node not in insisted]
    for call in calls:
        if ast.unparse(call.func) == "isinstance" and is_recipe(call.args[1]):
            yield ast.unparse(call)


@pytest.mark.parametrize("rule", [compared, matched, asked])
def test_decisions_name_every_choice(rule: Any) -> None:
    said = [f"{path.name}: {what}" for path in FILES for what in rule(ast.parse(path.read_text()))]
    assert not [one for one in said if one not in EXCEPTIONS]


def test_dispatch_rules_detect_decisions_that_omit_choices() -> None:
    """Written as it was before."""
    two_way = ast.parse(
        "def build(self):\n    if self.section.backend == 'vllm':\n        return 1\n    return 2"
    )
    assert list(compared(two_way)) == ["self.section.backend == 'vllm'"]
    assert list(compared(ast.parse("x = kind in ('mixed', 'jsd')")))
    assert list(
        matched(
            ast.parse("match name:\n    case 'python':\n        pass\n    case _:\n        pass")
        )
    )
    assert list(matched(ast.parse("match recipe:\n    case SFTRecipe():\n        pass")))
    assert list(asked(ast.parse("x = 1 if isinstance(recipe, SamplingRecipe) else 0")))


def test_unknown_sampler_backend_raises_key_error() -> None:
    """As if a name had been added to those that are allowed, and nothing else."""
    section = SamplerSection().model_copy(update={"backend": "sglang"})
    spec = SamplerSpec("no model is opened", section, Computation())
    for decision in (
        spec.build,
        lambda: spec.dtype,
        lambda: section.engine_count,
        lambda: section.in_process,
    ):
        with pytest.raises(KeyError, match="sglang"):
            decision()


@pytest.mark.proof
def test_one_more_choice_is_a_type_error_wherever_it_is_added(tmp_path: Path) -> None:
    """Adds a value of its own to each list of choices in a copy of the package, and has the copy's
    types checked.
    """
    shutil.copytree(PACKAGE, tmp_path / "lockstep", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE.parent / "pyproject.toml", tmp_path)
    added: dict[str, str] = {}

    def with_one_more(found: re.Match[str]) -> str:
        name = f"added_{len(added)}"
        added[name] = found[0]
        return f'{found[0][:-1]}, "{name}"]'

    for path in sorted((tmp_path / "lockstep" / "config").glob("*.py")):
        path.write_text(re.sub(r'Literal\[("\w+", )+"\w+"\]', with_one_more, path.read_text()))
    checked = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "lockstep"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    print(f"{len(added)} choices added; {checked.stdout.strip().splitlines()[-1]}")
    unnoticed = {
        name: where
        for name, where in added.items()
        if not re.search(rf"\b{name}\b", checked.stdout)
    }
    assert not unnoticed
