"""The house holds: imports point down, every engine stays in its place, nothing grows too large to
read.

Each rule looks at one file and yields the lines that break it. The rules themselves are tested at
the end of the file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from floors import FLOORS
from model_types import decisions_by_model_type

ROOT = Path(__file__).parent.parent
SOURCES = (
    "lockstep",
    "lockstep_logprobs",
    "lockstep_doctor",
    "lockstep_convert",
    "tests",
    "benchmarks",
    "examples",
)
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
NEIGHBOURS = {
    ("losses", "objectives")
}  # importer and imported on one floor, beside modules of one folder
LOWEST_WITH_TRANSFORMERS = FLOOR["data"]

ENGINES = {
    "ray": ("lockstep/cluster/ray_transport.py",),
    "vllm": ("lockstep/samplers/vllm/", "lockstep_doctor/taps/vllm/"),
    "openai": ("lockstep/servers/json_server.py", "lockstep/servers/bounded.py"),
    "tensorboard": ("lockstep/run/trackers/tensorboard.py",),
    "wandb": ("lockstep/run/trackers/wandb.py",),
    "megatron": ("lockstep/learners/megatron/", "lockstep_logprobs/linear_ce.py"),
    "peft": ("lockstep/models/lora.py",),
    "triton": ("lockstep_logprobs/fused/", "lockstep/models/exact/fused/"),
}
LAZY_ENGINES = {
    "lockstep_logprobs/linear_ce.py",
    "lockstep/models/lora.py",
}  # may name their engine, but only inside functions

ALONE = {
    "lockstep_logprobs": ("torch",),
    "lockstep_doctor": ("torch", "numpy", "safetensors", "rich"),
}
"""Packages beside the house, and all that they import."""

ON_THE_HOUSE = ("api.py", "backends/", "commands/", "machine/", "table/", "taps/")
"""What of `lockstep_doctor` stands on `lockstep`; the rest locates in any program."""

COMMANDS_OF = {
    "lockstep_convert": ("lockstep/commands/convert.py",),
    "lockstep_doctor": ("lockstep/commands/doctor.py", "lockstep/commands/gpu_check.py"),
}
"""Packages that import `lockstep`, and the only files of `lockstep` that import them."""

FAMILIES = "lockstep/models/families/"
OWN_CLASS = re.compile(r"\.(?!Auto|PreTrained|Generation)\w+(For[A-Z]\w+|Model|Config)$")
"""A class of `transformers` that is of one architecture, by its name."""

STATE_ON_DISK = ("lockstep.learners.boxes", "lockstep.learners.saving")
"""How any state is written, whatever has it."""

PROTOCOLS_ONLY = ("rewards", "environments", "judge", "rollouts", "monitor", "algorithms", "report")
ALGORITHMS = {
    folder.name
    for folder in (ROOT / "lockstep/algorithms").iterdir()
    if (folder / "options.py").is_file()
} - {
    "policy_gradient"  # what PPO and GRPO share
}

TASKS = {file.stem for file in (ROOT / "lockstep/tasks").glob("*.py")} - {"__init__", "base"}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_NESTING = 3

EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "lockstep/losses/preference.py",
        "nothing_asks_which_algorithm",
    ): "dpo is also the name of a loss",
    ("lockstep/__init__.py", "imports_point_down"): "the public face, which imports on first use",
    **{
        (
            f"lockstep_logprobs/fused/{name}.py",
            "packages_stand_alone",
        ): "imported on a GPU alone, by kernel.py"
        for name in ("hidden", "lanes", "rows", "support")
    },
}
"""(path, name of the rule) → why this file may break it."""


@dataclass(frozen=True)
class SourceFile:
    """A Python file of the project; `path` is relative to its root, with slashes."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def part(self) -> str | None:
        """What of the package it belongs to: a folder, or a module that lies in the package
        itself.
        """
        parts = PurePosixPath(self.path).with_suffix("").parts
        return parts[1] if parts[0] == "lockstep" else None


@dataclass(frozen=True)
class Import:
    """`module` in full, with the imported name at its end; `lazy` inside a function."""

    line: int
    module: str
    lazy: bool

    @property
    def part(self) -> str | None:
        """What of the package is imported; names that are no module are those of the package
        itself.
        """
        package, _, rest = self.module.partition(".")
        name = rest.split(".")[0]
        return (name if name in FLOOR else "__init__") if package == "lockstep" else None

    def of(self, module: str) -> bool:
        return f"{self.module}.".startswith(f"{module}.")


Finding = tuple[int, str]  # line, and what is wrong with it
Rule = Callable[[SourceFile], Iterator[Finding]]


def imports(file: SourceFile) -> Iterator[Import]:
    """All imports, at the top and in functions, and `import_module("…")` with a name written
    out.
    """
    nodes: list[tuple[ast.AST, bool]] = [(file.tree, False)]
    while nodes:
        node, lazy = nodes.pop()
        lazy_inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        nodes.extend((child, lazy_inside) for child in ast.iter_child_nodes(node))
        for module in imported_modules(node, file.path):
            yield Import(node.lineno if isinstance(node, ast.stmt | ast.expr) else 0, module, lazy)


def imported_modules(node: ast.AST, path: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            package = PurePosixPath(path).parts[: -level or None] if level else ()
            base = ".".join([*package, *([module] if module else [])])
            return [f"{base}.{alias.name}" for alias in names]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            return [module]
        case _:
            return []


def imports_point_down(file: SourceFile) -> Iterator[Finding]:
    if file.part is None:
        return
    if file.part not in FLOOR:
        yield 1, f"{file.part} is on no floor; say in FLOORS, and in the design, where it belongs"
        return
    floor = FLOOR[file.part]
    for imported in imports(file):
        part = imported.part
        if (
            part is None
            or FLOOR[part] < floor
            or part == file.part
            or (file.part, part) in NEIGHBOURS
        ):
            continue
        if FLOOR[part] == floor and floor in (0, FLOOR["cli"]):  # all of them lie in one folder
            continue
        yield (
            imported.line,
            f"{file.part} (floor {floor}) imports {imported.module} (floor {FLOOR[part]})",
        )


def package_imports_no_folder_beside_it(file: SourceFile) -> Iterator[Finding]:
    """The wheel holds the packages alone, so an import of anything else works in a checkout
    only.
    """
    if file.part is None and file.path.split("/")[0] not in ALONE:
        return
    for imported in imports(file):
        if imported.module.split(".")[0] in ("benchmarks", "examples", "tests"):
            yield imported.line, f"{imported.module} is not in the wheel"


def engines_stay_in_their_place(file: SourceFile) -> Iterator[Finding]:
    if file.part is None and file.path.split("/")[0] not in ALONE:
        return
    for imported in imports(file):
        for engine in filter(imported.of, ENGINES):
            if not file.path.startswith(ENGINES[engine]):
                yield (
                    imported.line,
                    f"{engine} may be imported only in {' and '.join(ENGINES[engine])}",
                )
            elif file.path in LAZY_ENGINES and not imported.lazy:
                yield imported.line, f"{engine} may be imported here only inside a function"


def families_alone_know_model_types(file: SourceFile) -> Iterator[Finding]:
    """What is particular to an architecture is looked up with `family_of`; messages may print the
    type.
    """
    if file.part is None or file.path.startswith(FAMILIES):
        return
    for imported in imports(file):
        if (imported.of("transformers") and OWN_CLASS.search(imported.module)) or (
            imported.of("transformers.models") and not imported.of("transformers.models.auto")
        ):
            yield (
                imported.line,
                (
                    f"{imported.module} is of one architecture; say in {FAMILIES} what is "
                    "particular "
                    "to it"
                ),
            )
    for line in decisions_by_model_type(file.tree):
        yield (
            line,
            f"a decision by model_type; say in {FAMILIES} what is particular to an architecture",
        )


def packages_stand_alone(file: SourceFile) -> Iterator[Finding]:
    package, _, path = file.path.partition("/")
    if package not in ALONE or (package == "lockstep_doctor" and path.startswith(ON_THE_HOUSE)):
        return
    for imported in imports(file):
        root = imported.module.split(".")[0]
        if (
            root not in sys.stdlib_module_names
            and root not in (*ALONE[package], package)
            and not imported.lazy
        ):
            needed = ", ".join(ALONE[package])
            yield (
                imported.line,
                f"{imported.module}: {package} imports {needed} and the standard library alone",
            )


def only_commands_import_packages_beside(file: SourceFile) -> Iterator[Finding]:
    """What converts or compares stands outside and imports the house; hints read tables as
    files.
    """
    if file.part is None:
        return
    for imported in imports(file):
        for package in filter(imported.of, COMMANDS_OF):
            if file.path not in COMMANDS_OF[package]:
                yield (
                    imported.line,
                    f"{imported.module} is for {' and '.join(COMMANDS_OF[package])}",
                )


def transformers_only_from_models_up(file: SourceFile) -> Iterator[Finding]:
    if file.part is None or FLOOR.get(file.part, 0) >= LOWEST_WITH_TRANSFORMERS:
        return
    for imported in imports(file):
        if imported.of("transformers"):
            yield imported.line, f"transformers below floor {LOWEST_WITH_TRANSFORMERS}"


def protocols_only(file: SourceFile) -> Iterator[Finding]:
    """What lies between the backends and the runtime knows `base`, never what is behind it."""
    if file.part not in PROTOCOLS_ONLY:
        return
    for imported in imports(file):
        for backends in ("lockstep.learners", "lockstep.samplers"):
            if imported.of(backends) and not any(
                map(imported.of, (f"{backends}.base", *STATE_ON_DISK))
            ):
                yield (
                    imported.line,
                    (
                        f"{imported.module} is an implementation; import the protocol in "
                        f"{backends}.base"
                    ),
                )


def algorithms_know_no_other(file: SourceFile) -> Iterator[Finding]:
    """An algorithm is its folder; nothing else in the package imports from there, by name or
    otherwise.
    """
    if (
        file.part is None or file.path == "lockstep/__init__.py"
    ):  # which hands on a class to derive from
        return
    own = PurePosixPath(file.path).with_suffix("").parts[2] if file.part == "algorithms" else None
    for imported in imports(file):
        if imported.of("lockstep.algorithms") and (
            other := imported.module.split(".")[2]
        ) in ALGORITHMS - {own}:
            yield (
                imported.line,
                f"{own or file.part} imports algorithm {other}; read what algorithms.base declares",
            )


def nothing_asks_which_algorithm(file: SourceFile) -> Iterator[Finding]:
    """Outside of an algorithm's folder no decision asks for its class, a base class, its name or an
    attribute.
    """
    if file.part is None or file.part == "algorithms":
        return
    for node in ast.walk(file.tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]):
                asked = [
                    name for name in re.findall(r"\w+", ast.unparse(kind)) if is_recipe_class(name)
                ]
                if asked:
                    yield (
                        node.lineno,
                        (
                            f"asks for {', '.join(asked)}; declare in algorithms.base what it "
                            "wants "
                            "to know"
                        ),
                    )
            case ast.Call(func=ast.Name(id="hasattr" | "getattr"), args=[asked_of, *_]):
                if re.search(r"recipe|algorithm|training|loaded", ast.unparse(asked_of)):
                    yield node.lineno, f"asks {ast.unparse(asked_of)} for an attribute"
            case ast.Compare() | ast.MatchValue():
                named = {
                    str(one.value) for one in ast.walk(node) if isinstance(one, ast.Constant)
                } & ALGORITHMS
                if named:
                    yield node.lineno, f"asks for the name {', '.join(named)}"
            case ast.MatchClass(cls=kind) if is_recipe_class(ast.unparse(kind)):
                yield kind.lineno, f"asks for {ast.unparse(kind)}"


def nothing_knows_a_task(file: SourceFile) -> Iterator[Finding]:
    """A task is one file and what recipes say: no code of the package names one."""
    if file.part in (None, "tasks"):
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Constant) and str(node.value) in TASKS:
            yield node.lineno, f"names the task {node.value}"
    for imported in imports(file):
        if imported.of("lockstep.tasks") and not imported.of("lockstep.tasks.base"):
            yield imported.line, f"{imported.module}: a task is found by config.task"


def is_recipe_class(name: str) -> bool:
    return (name.endswith("Recipe") and name != "Recipe") or name in ("Algorithm", "Common")


def no_module_is_called_utils(file: SourceFile) -> Iterator[Finding]:
    if {"utils", "util"} & set(PurePosixPath(file.path).with_suffix("").parts):
        yield 1, "a file or folder called utils says nothing; name what is in it"


def no_mocks(file: SourceFile) -> Iterator[Finding]:
    for imported in imports(file):
        if any(map(imported.of, ("unittest.mock", "mock", "pytest_mock"))):
            yield imported.line, f"{imported.module}: write a fake that implements the protocol"
    for node in ast.walk(file.tree):
        if isinstance(node, ast.arg) and node.arg == "mocker":
            yield node.lineno, "mocker: write a fake that implements the protocol"


def no_test_imports_a_test(file: SourceFile) -> Iterator[Finding]:
    """What several tests share lies in tests/fixtures/, so that a file of tests can be changed, or
    moved, alone.
    """
    if not file.path.startswith("tests/"):
        return
    for imported in imports(file):
        first = imported.module.split(".")[0]
        if first.startswith("test_") or first in ("conftest", "tests"):
            yield (
                imported.line,
                (
                    f"{imported.module}: put what tests share into tests/fixtures/, and import its "
                    "bare name"
                ),
            )


def files_are_short(file: SourceFile) -> Iterator[Finding]:
    count = len(file.text.splitlines())
    if count > MAX_FILE_LINES:
        yield count, f"{count} lines, more than {MAX_FILE_LINES}"


def functions_are_short(file: SourceFile) -> Iterator[Finding]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            count = node.end_lineno - node.lineno + 1
            if count > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {count} lines, more than {MAX_FUNCTION_LINES}"


def nesting_is_shallow(file: SourceFile) -> Iterator[Finding]:
    for line, depth in blocks(file.tree, 0):
        if depth > MAX_NESTING:
            yield line, f"nested {depth} deep, more than {MAX_NESTING}"


def blocks(node: ast.AST, depth: int) -> Iterator[tuple[int, int]]:
    """Line and depth of each if, loop, with, try and match; a function begins anew, an elif is as
    deep as its if.
    """
    compound = (
        ast.If,
        ast.For,
        ast.AsyncFor,
        ast.While,
        ast.With,
        ast.AsyncWith,
        ast.Try,
        ast.TryStar,
        ast.Match,
    )
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from blocks(child, 0)
        elif isinstance(child, compound):
            elif_ = (
                isinstance(node, ast.If)
                and isinstance(child, ast.If)
                and child.col_offset == node.col_offset
            )
            here = depth if elif_ else depth + 1
            yield child.lineno, here
            yield from blocks(child, here)
        else:
            yield from blocks(child, depth)


RULES: tuple[Rule, ...] = (
    imports_point_down,
    package_imports_no_folder_beside_it,
    engines_stay_in_their_place,
    transformers_only_from_models_up,
    protocols_only,
    algorithms_know_no_other,
    nothing_asks_which_algorithm,
    nothing_knows_a_task,
    families_alone_know_model_types,
    packages_stand_alone,
    only_commands_import_packages_beside,
    no_module_is_called_utils,
    no_mocks,
    no_test_imports_a_test,
    files_are_short,
    functions_are_short,
    nesting_is_shallow,
)


def name_of(rule: Rule) -> str:
    return rule.__name__


@pytest.fixture(scope="module")
def project() -> list[SourceFile]:
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    relative = [path.relative_to(ROOT) for path in paths]
    visible = [path for path in relative if not any(part.startswith(".") for part in path.parts)]
    return [
        SourceFile(path.as_posix(), (ROOT / path).read_text(encoding="utf-8")) for path in visible
    ]


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_the_project_keeps(rule: Rule, project: list[SourceFile]) -> None:
    broken = [
        f"{file.path}:{line}: {name_of(rule)}: {what}"
        for file in project
        if (file.path, name_of(rule)) not in EXCEPTIONS
        for line, what in rule(file)
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_no_two_modules_of_the_tests_have_one_name(project: list[SourceFile]) -> None:
    """Tests find each other's helpers by bare names, so pytest can import only one of two."""
    names = [PurePosixPath(file.path).name for file in project if file.path.startswith("tests/")]
    assert {name for name, count in Counter(names).items() if count > 1} <= {"conftest.py"}


def test_every_exception_has_a_reason_and_is_still_needed(project: list[SourceFile]) -> None:
    files, rules = {file.path: file for file in project}, {name_of(rule): rule for rule in RULES}
    for (path, rule), reason in EXCEPTIONS.items():
        assert reason, f"why may {path} break {rule}?"
        assert list(rules[rule](files[path])), f"{path} keeps {rule} by now; remove the exception"


def test_the_command_line_answers_without_torch() -> None:
    """And so do recipes and their schema."""
    modules = ("lockstep.config.loading", "lockstep.config.schema", "lockstep.cli")
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


DEEP = "for a in b:\n for c in d:\n  with e:\n   if f:\n    g()\n"
HANDLER = (
    "def f():\n  try: 1\n  except A:\n    match b:\n      case 1:\n        if c:\n          "
    "if d: 2\n"
)

BROKEN: tuple[tuple[Rule, str, str, int], ...] = (
    (imports_point_down, "lockstep/core/batch.py", "import torch\nimport lockstep.models.load\n", 2),
    (imports_point_down, "lockstep/objectives/policy.py", ("def f():\n    from lockstep.run import "
                                                          "loop\n"), 2),
    (imports_point_down, "lockstep/learners/base.py", "from lockstep import samplers\n", 1),
    (imports_point_down, "lockstep/report/log.py", "from ..run.track import Tracker\n", 1),
    (imports_point_down, "lockstep/models/load.py", "import_module('lockstep.cli')\n", 1),
    (imports_point_down, "lockstep/strays.py", "", 1),
    (package_imports_no_folder_beside_it, "lockstep_doctor/x.py", ("def f():\n  import "
                                                                  "benchmarks.plan\n"), 2),
    (engines_stay_in_their_place, "lockstep/samplers/torch/sampler.py", "def f():\n  import vllm\n", 2),
    (engines_stay_in_their_place, "lockstep_logprobs/linear_ce.py", "from megatron.core import x\n", 1),
    (engines_stay_in_their_place, "lockstep_logprobs/vocab.py", "def f():\n  import triton\n", 2),
    (transformers_only_from_models_up, "lockstep/distributed/vocab.py", ("from transformers import "
                                                                        "x\n"), 1),
    (protocols_only, "lockstep/algorithms/ppo/a.py", ("from lockstep.learners.torch.learner import "
                                                     "TorchLearner\n"), 1),
    (protocols_only, "lockstep/rollouts/rollout.py", "from lockstep.samplers import torch\n", 1),
    (algorithms_know_no_other, "lockstep/algorithms/ppo/step.py", ("from lockstep.algorithms.sft "
                                                                  "import step\n"), 1),
    (algorithms_know_no_other, "lockstep/run/a.py", ("from lockstep.algorithms.sft.options import "
                                                    "SFTRecipe\n"), 1),
    (nothing_asks_which_algorithm, "lockstep/run/a.py", "x = isinstance(recipe, Algorithm)\n", 1),
    (nothing_asks_which_algorithm, "lockstep/plan/a.py", "if recipe.algorithm == 'grpo':\n  1\n", 1),
    (nothing_asks_which_algorithm, "lockstep/run/a.py", ("match recipe:\n  case PPORecipe():\n    "
                                                        "1\n"), 2),
    (nothing_asks_which_algorithm, "lockstep/run/a.py", "critic = hasattr(recipe, 'critic')\n", 1),
    (nothing_knows_a_task, "lockstep/run/a.py", "import torch\nx = task.name == 'quiz'\n", 2),
    (nothing_knows_a_task, "lockstep/models/a.py", ("from lockstep.tasks.arithmetic import "
                                                   "Arithmetic\n"), 1),
    (families_alone_know_model_types, "lockstep/models/load.py", ("a = 1\nif config.model_type == "
                                                                 "'qwen3': 1\n"), 2),
    (families_alone_know_model_types, "lockstep/plan/x.py", "b = c.model_type not in KNOWN\n", 1),
    (families_alone_know_model_types, "lockstep/models/cut.py", ("kind = c.model_type\nb = kind in "
                                                                "KNOWN\n"), 2),
    (families_alone_know_model_types, "lockstep/models/cut.py", ("kind, n = c.model_type, 1\nb = "
                                                                "T[kind]\n"), 2),
    (families_alone_know_model_types, "lockstep/models/cut.py", ("match c.model_type:\n  case 'x': "
                                                                "1\n"), 1),
    (families_alone_know_model_types, "lockstep/models/cut.py", ("b = 'qwen3' == "
                                                                "fields['model_type']\n"), 1),
    (families_alone_know_model_types, "lockstep/models/cut.py", "b = PLANS.get(c.model_type)\n", 1),
    (families_alone_know_model_types, "lockstep/models/cut.py", ("b = "
                                                                "c.model_type.startswith('qwen')\n"), 1),
    (families_alone_know_model_types, "lockstep/models/cut.py", ("from transformers import "
                                                                "LlamaForCausalLM\n"), 1),
    (families_alone_know_model_types, "lockstep/models/cut.py", ("import "
                                                                "transformers.models.gemma\n"), 1),
    (only_commands_import_packages_beside, "lockstep/config/x.py", ("def f():\n  import "
                                                                   "lockstep_convert.table\n"), 2),
    (packages_stand_alone, "lockstep_logprobs/vocab.py", ("import torch\nfrom lockstep.core.types "
                                                         "import X\n"), 2),
    (packages_stand_alone, "lockstep_doctor/cuts.py", "import torch\nimport transformers\n", 2),
    (no_module_is_called_utils, "lockstep/models/utils/names.py", "", 1),
    (no_mocks, "tests/data/test_x.py", "from unittest import mock\n", 1),
    (no_mocks, "tests/data/test_x.py", "def test_x(mocker): ...\n", 1),
    (no_test_imports_a_test, "tests/data/test_x.py", "import yaml\nfrom test_y import z\n", 2),
    (no_test_imports_a_test, "tests/fixtures/x.py", "def f():\n  import tests.data.test_y\n", 2),
    (files_are_short, "lockstep/core/batch.py", "x = 1\n" * 501, 501),
    (functions_are_short, "lockstep/core/batch.py", "def f():\n" + "    x = 1\n" * 80, 1),
    (nesting_is_shallow, "lockstep/core/batch.py", DEEP, 4),
    (nesting_is_shallow, "lockstep/core/batch.py", HANDLER, 7),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text", "line"), BROKEN)
def test_a_rule_finds_what_breaks_it(rule: Rule, path: str, text: str, line: int) -> None:
    assert [found for found, _ in rule(SourceFile(path, text))] == [line]
