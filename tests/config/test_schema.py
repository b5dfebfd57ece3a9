"""The JSON schema of recipes takes what the loader takes, and knows each option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from lockstep.cli import main
from lockstep.config import registry
from lockstep.config.errors import RecipeShape
from lockstep.config.loading import RecipeError, load_recipe, read_tree
from lockstep.config.recipe_files import find_shipped
from lockstep.config.schema import make_schema
from lockstep.system import yaml12

ROOT = Path(__file__).parents[2]
PPO = Draft202012Validator(make_schema("ppo"))
SHIPPED = find_shipped()


def options(shape: RecipeShape, above: str = "") -> dict[str, str]:
    """What is said of each option and section, by its keys."""
    found: dict[str, str] = {}
    for name, field in shape.option_fields.items():
        inner = shape.find_section(name)
        found[above + name] = field.description or (
            "" if inner is None else inner.kind.__doc__ or ""
        )
        found |= {} if inner is None else options(inner, f"{above}{name}.")
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_validates_as_it_is_written_and_as_it_is_resolved(name: str) -> None:
    own = Draft202012Validator(make_schema(read_tree(name)["algorithm"]))
    own.validate(yaml12.parse_yaml(SHIPPED[name].read_text()))
    own.validate(read_tree(name))
    try:
        resolved = load_recipe(name).dump_options()
    except RecipeError:  # it waits for a model or a file, which only its user has
        return
    own.validate(resolved)


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"algorithm": "ppo", "pppo": {}}, []),
        ({"algorithm": "ppo", "ppo": {"clipp": 0.1}}, ["ppo"]),
        ({"algorithm": "ppo", "ppo": {"clip": "wide"}}, ["ppo", "clip"]),
        ({"algorithm": "ppo", "grpo": {}}, []),
    ],
)
def test_schema_rejects_wrong_option_at_its_path(wrong: dict[str, Any], where: list[str]) -> None:
    found: list[ValidationError] = list(PPO.iter_errors(wrong))
    assert found
    deepest = max(found, key=lambda error: len(error.absolute_path))
    assert list(deepest.absolute_path) == where


def test_schema_accepts_short_forms_and_custom_tasks() -> None:
    PPO.validate({"base": "ppo_gsm8k", "ppo": {"clip": 0.1}, "sampler": "vllm", "run": "runs/mine"})
    PPO.validate({"data": {"task": {"name": "rows.py:Rows", "count": 3}}})


@pytest.mark.parametrize(("name", "kind"), list(registry.iterate_algorithms()))
def test_schema_contains_every_option_with_its_description(name: str, kind: type) -> None:
    described = json.dumps(make_schema(name), ensure_ascii=False)
    for keys, meaning in options(RecipeShape(kind)).items():
        assert f'"{keys.rpartition(".")[2]}"' in described
        assert meaning or (name, keys) == ("eval", "seed"), f"{keys} has no description"
        assert json.dumps(meaning.partition("\n")[0], ensure_ascii=False)[1:-1] in described, keys


def test_schema_command_makes_schema_of_custom_algorithm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = f"{ROOT}/examples/custom_algorithm/reinforce.py:Reinforce"
    assert main(["schema", place]) == 0
    made = json.loads(capsys.readouterr().out)
    recipe = yaml12.parse_yaml((ROOT / "examples/custom_algorithm/recipe.yaml").read_text())
    Draft202012Validator(made).validate({**recipe, "algorithm": place})
    assert not Draft202012Validator(made).is_valid({**recipe, "algorithm": place, "critik": {}})
