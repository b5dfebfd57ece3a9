"""The tables of other libraries' keys: each names options that recipes have, and answers a key in a recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conversions import TRAINED

from lockstep.cli import main, parse
from lockstep.config import registry
from lockstep.config.errors import Shape, list_options
from lockstep.foreign.libraries import CONVERTIBLE, LIBRARIES
from lockstep.foreign.words import Config, Json, Key, Kind, Library, spell

OPTIONS = {option for name, kind in registry.every() if name in TRAINED for option in list_options(Shape(kind))}
ROWS = [(library, row) for library in LIBRARIES for row in library.rows]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_every_row_names_options_that_recipes_have(library: Library) -> None:
    named = {key.partition("=")[0] for row in library.rows for key in row.ours}
    assert named
    assert not [key for key in named if not OPTIONS & set(spell(key))]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_key_has_one_row(library: Library) -> None:
    keys = [row.theirs for row in library.rows if row.theirs]
    assert sorted(keys) == sorted(set(keys))


@pytest.mark.parametrize("library", CONVERTIBLE.values(), ids=lambda library: library.name)
def test_what_is_not_here_has_a_reason(library: Library) -> None:
    assert not [row.theirs for row in library.rows if not row.ours and not (row.note or row.differs)]
    assert not [row.theirs for row in library.rows if row.ours and row.kind is not Kind.MAPS]


@pytest.mark.parametrize("library", CONVERTIBLE.values(), ids=lambda library: library.name)
def test_defaults_are_of_keys_that_the_table_has(library: Library) -> None:
    configs = [Config({}, program, algorithm=algorithm) for algorithm in TRAINED for program in ("", "rloo")]
    assert not [key for config in configs for key in library.find_defaults(config) if key not in library.by_key]


def is_odd(row: Key) -> bool:
    """Values that no config has, which must be answered all the same."""
    config = Config({row.theirs: "x"}, algorithm="grpo")
    values: tuple[Json, ...] = (None, True, -1, 0, 1.5, "x", [], ["x"], {})
    return any(row.convert(value, config) is ... for value in values)


@pytest.mark.parametrize("library", CONVERTIBLE.values(), ids=lambda library: library.name)
def test_a_conversion_answers_any_value(library: Library) -> None:
    assert not [row.theirs for row in library.rows if is_odd(row)]


SAYS = {
    "actor_rollout_ref.rollout.temperature=1": "actor_rollout_ref.rollout.temperature is sampling.temperature=…",
    "rollout.temperature=1": "what OpenRLHF calls rollout.temperature is sampling.temperature=… here",
    "kl_coef=0.1": "what other libraries call kl_coef is ppo.kl.coef=… here",
    "ppo.epsilon=0.1": "what other libraries call epsilon is ppo.clip=… here",
    "loss_fn.ratio_clip_max=0.3": "what NeMo RL calls loss_fn.ratio_clip_max is ppo.clip_high=… here",
    "algo.kl.init_coef=0.1": "what OpenRLHF calls algo.kl.init_coef is ppo.kl.coef=… here",
    "packing=true": "packing is a key of TRL: sequences are packed",
}


@pytest.mark.parametrize("override", SAYS)
def test_a_key_of_theirs_in_a_recipe(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "ppo_arithmetic", override]) == 2
    message = capsys.readouterr().err
    assert SAYS[override] in message
    assert message.count("\n") == 1


def test_a_section_of_theirs_in_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("base: grpo_arithmetic\nactor_rollout_ref: {hybrid: 1, rollout: {temperature: 1.0, n: 4}}\n")
    assert main(["config", str(recipe)]) == 2
    assert "what verl calls actor_rollout_ref.rollout.temperature is sampling.temperature=…" in capsys.readouterr().err


def test_the_command_offers_every_library_that_is_converted() -> None:
    """The command has a copy of the words: reading the tables would cost every start .2 s."""
    assert all(parse(["convert", "any.yaml", "--from", word]).library == word for word in CONVERTIBLE)
    with pytest.raises(SystemExit):
        parse(["convert", "any.yaml", "--from", "nemo-aligner"])


def test_a_recipe_without_faults_is_read_without_the_tables() -> None:
    code = "import sys, lockstep.config.errors; sys.exit('lockstep.foreign.libraries' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
