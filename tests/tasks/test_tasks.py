"""Tasks: one file each, found by name, with options of their own; and the keys that they had
before.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ladder.tasks.letters import Letters
from lockstep.config import Task
from lockstep.config.help import explain_options
from lockstep.config.loading import RecipeError, describe_recipe, load_recipe
from lockstep.config.task import find_task
from lockstep.tasks import base
from lockstep.tasks.arithmetic import Arithmetic

FILES = sorted(
    {file.stem for file in Path(base.__file__).parent.glob("*.py")} - {"__init__", "base"}
)
RECIPE = "grpo_arithmetic"
NAME = "benchmarks.ladder.tasks.letters:Letters"
LETTERS = (
    f"data.task.name={NAME}",
    "data.task.train_prompts=4",
    "data.task.validation_prompts=2",
)


def refusal(*overrides: str, recipe: str = RECIPE) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return str(caught.value)


def task(*overrides: str, recipe: str = RECIPE) -> Task | None:
    return load_recipe(recipe, overrides).training_recipe.data.task


@pytest.mark.parametrize("name", FILES)
def test_task_is_found_by_file_name_without_importing_torch(name: str) -> None:
    assert issubclass(find_task({"name": name}), Task)
    assert set(find_task({"name": name}).shared) <= find_task({"name": name}).model_fields.keys()
    code = (
        f"import sys; from lockstep.config.task import find_task; find_task({{'name': '{name}'}}); "
        "print('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.task.train_question=3", "unknown option data.task.train_question; did you mean "
         "data.task.train_questions?"),
        ("data.task.seed=x", 'data.task.seed is "x", but should be a whole number'),
        ("data.task.seed='1'", 'data.task.seed is "1", but should be a whole number'),
        ("data.task=3", "data.task is 3, but should be a mapping of options"),
        ("data.task.name=arithmetc", 'data.task: name is "arithmetc"; choose one of '
                                     f'{", ".join(FILES)}, '
         "or name your own as file.py:Class"),
        ("data.task.name=absent.py:Own", "data.task: name absent.py:Own: absent.py cannot be "
                                         "imported "
         f"(FileNotFoundError: file not found: {Path('absent.py').resolve()})"),
        ("data.task.name=lockstep.system.paths:expand_path", "data.task: name "
                                                        "lockstep.system.paths:expand_path: "
         "lockstep.system.paths:expand_path has the wrong base class; derive it from "
         "lockstep.tasks.base.Task"),
        ("data.task=null", ("data: set exactly one of train (a file of rows) and task (which "
                            "generates "
                           "them)")),
    ],
)  # fmt: skip
def test_invalid_task_option_is_rejected_with_override_and_reason(
    override: str, message: str
) -> None:
    assert refusal(override) == f"override {override}: {message}"


def test_task_name_override_drops_options_of_previous_task() -> None:
    assert task(*LETTERS) == Letters(name=NAME, train_prompts=4, validation_prompts=2)
    assert task("data.task.seed=3", "data.task.name=arithmetic") == Arithmetic(
        name="arithmetic", train_questions=4096, validation_questions=400, seed=3
    )


def test_task_options_are_part_of_recipe_digest_and_are_explained(tmp_path: Path) -> None:
    loaded = load_recipe(RECIPE, ["data.task.seed=3"])
    (tmp_path / "again.yaml").write_text(describe_recipe(loaded))
    assert (
        load_recipe(str(tmp_path / "again.yaml")).digest
        == loaded.digest
        != load_recipe(RECIPE).digest
    )
    assert explain_options(loaded, ["data.task.seed"]).startswith("data:\n  task:")
    assert "    demonstrations: " in explain_options(loaded, ["data.task"])
    assert "    judge_share: " in explain_options(load_recipe(RECIPE, LETTERS), ["data.task"])
    with pytest.raises(RecipeError, match=r"did you mean data\.task\.seed"):
        explain_options(loaded, ["data.task.seeds"])


def test_warm_start_recipe_gets_question_counts_and_seed_of_same_task() -> None:
    first = load_recipe(RECIPE, ["data.task.train_questions=50", "data.task.seed=7"]).warm_start
    assert first is not None
    made = first.training_recipe.data.task
    assert isinstance(made, Arithmetic)
    assert (made.train_questions, made.validation_questions, made.seed) == (50, 400, 7)
    assert made.demonstrations == 102400, "which is of its own"
    other = load_recipe(RECIPE, LETTERS).warm_start
    assert other is not None
    assert (
        other.training_recipe.data.task == load_recipe("sft_arithmetic").training_recipe.data.task
    )
