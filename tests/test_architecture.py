"""The house holds: imports point down, every engine stays in its place, nothing grows too large to
read.

Each rule looks at one file and yields the lines that break it. The rules themselves are tested at
the end of the file.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from itertools import product
from pathlib import PurePosixPath

import pytest
from house_rules import (
    EXCEPTIONS,
    ROOT,
    RULES,
    SOURCES,
    Rule,
    SourceFile,
    a_test_runs_below_proofs,
    algorithms_know_no_other,
    engines_stay_in_their_place,
    families_alone_know_model_types,
    files_are_short,
    functions_are_short,
    imports_point_down,
    nesting_is_shallow,
    no_mocks,
    no_module_is_called_utils,
    no_test_imports_a_test,
    nothing_asks_which_algorithm,
    nothing_knows_a_task,
    only_commands_import_packages_beside,
    package_imports_no_folder_beside_it,
    packages_stand_alone,
    protocols_only,
    transformers_only_from_models_up,
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


@pytest.fixture(scope="module")
def broken(project: list[SourceFile]) -> dict[str, list[str]]:
    """What breaks each rule; all rules look at a file before the next one is parsed."""
    found: dict[str, list[str]] = defaultdict(list)
    for file, rule in product(project, RULES):
        name = name_of(rule)
        if (file.path, name) not in EXCEPTIONS:
            found[name] += [f"{file.path}:{line}: {name}: {what}" for line, what in rule(file)]
    return found


@pytest.mark.parametrize("rule", [*map(name_of, RULES)])
def test_source_files_follow_architecture_rule(rule: str, broken: dict[str, list[str]]) -> None:
    assert not broken[rule], "\n" + "\n".join(broken[rule])


def test_names_of_test_modules_are_unique(project: list[SourceFile]) -> None:
    """Tests find each other's helpers by bare names, so pytest can import only one of two."""
    names = [PurePosixPath(file.path).name for file in project if file.path.startswith("tests/")]
    assert {name for name, count in Counter(names).items() if count > 1} <= {"conftest.py"}


def test_every_architecture_exception_has_a_reason_and_is_still_needed(
    project: list[SourceFile],
) -> None:
    files, rules = {file.path: file for file in project}, {name_of(rule): rule for rule in RULES}
    for (path, rule), reason in EXCEPTIONS.items():
        assert reason, f"why may {path} break {rule}?"
        assert list(rules[rule](files[path])), f"{path} keeps {rule} by now; remove the exception"


def test_importing_command_line_and_recipe_loading_does_not_import_torch() -> None:
    """And so do recipes and their schema."""
    modules = ("lockstep.config.loading", "lockstep.config.schema", "lockstep.cli")
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


PROOF = "@pytest.mark.proof\ndef test_x(): ...\n"
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
    (a_test_runs_below_proofs, "tests/data/test_x.py", PROOF, 2),
    (files_are_short, "lockstep/core/batch.py", "x = 1\n" * 501, 501),
    (functions_are_short, "lockstep/core/batch.py", "def f():\n" + "    x = 1\n" * 80, 1),
    (nesting_is_shallow, "lockstep/core/batch.py", DEEP, 4),
    (nesting_is_shallow, "lockstep/core/batch.py", HANDLER, 7),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text", "line"), BROKEN)
def test_architecture_rule_reports_line_of_violation(
    rule: Rule, path: str, text: str, line: int
) -> None:
    assert [found for found, _ in rule(SourceFile(path, text))] == [line]
