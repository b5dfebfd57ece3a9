"""Tables of other libraries' keys name options that recipes have, and word hints about keys in
recipes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.config import other_libraries, registry
from lockstep.config.errors import RecipeShape, list_options
from lockstep_convert.convert import order_options
from lockstep_convert.table import (
    KeyEntry,
    KeyTable,
    KeyVerdict,
    list_libraries,
    load_ours,
    load_table,
)
from lockstep_convert.values import CONVERSIONS

TRAINED = (
    "ppo",
    "grpo",
    "sft",
    "dpo",
    "kto",
    "orpo",
    "simpo",
    "online_dpo",
    "reward_model",
    "distill",
)
OPTIONS = {
    option
    for name, kind in registry.iterate_algorithms()
    if name in TRAINED
    for option in list_options(RecipeShape(kind))
}


def spell(option: str) -> set[str]:
    """An option of the tables as each algorithm may have it."""
    return {
        option,
        option.replace("ppo.", "grpo.", 1) if option.startswith("ppo.") else option,
        option.replace("policy.", "optimizer.", 1) if option.startswith("policy.") else option,
    }


def named_options(row: KeyEntry) -> Iterator[str]:
    """All options that a row may set."""
    yield from row.to
    yield from row.sets
    for value in (row.values or {}).values():
        yield from value if isinstance(value, dict) else ()
    for other in row.also:
        yield from named_options(other)


def named_keys(row: KeyEntry) -> Iterator[str]:
    """All other keys that a row reads."""
    yield from (*row.when, *row.times, *row.per)
    for other in row.also:
        yield from named_keys(other)


@pytest.mark.parametrize("library", list_libraries())
def test_key_table_names_only_existing_options_keys_and_conversions(library: str) -> None:
    table: KeyTable = load_table(library)
    options = {name for row in table.rows.values() for name in named_options(row)}
    options |= {name for sets in table.always.values() for name in sets}
    assert not {name for name in options if not OPTIONS & spell(name)}
    keys = {name for row in table.rows.values() for name in named_keys(row)} - {"algorithm"}
    assert not {name for name in keys if table.find_entry(name) is None}
    assert {row.convert for row in table.rows.values()} <= set(CONVERSIONS)


@pytest.mark.parametrize("library", list_libraries())
def test_key_table_row_without_option_has_a_reason(library: str) -> None:
    rows = load_table(library).rows
    assert not [
        key for key, row in rows.items() if row.verdict is not KeyVerdict.CONVERTED and not row.note
    ]
    bare = [
        key
        for key, row in rows.items()
        if row.verdict is KeyVerdict.CONVERTED and not [*named_options(row)]
    ]
    assert not [
        key
        for key in bare
        if not (rows[key].otherwise or rows[key].convert == "trackers" or rows[key].values)
    ]


def test_conversion_requirements_and_placeholders_name_existing_options() -> None:
    ours = load_ours()
    names = {
        *ours["requires"],
        *(name.partition("=")[0] for name in ours["requires"].values()),
        *ours["placeholders"],
    }
    assert not {name for name in names if not OPTIONS & spell(name)}
    assert order_options("sft")


SAYS = {
    "actor_rollout_ref.rollout.temperature=1": (
        "rollout.temperature in verl is sampling.temperature=… here"
    ),
    "rollout.temperature=1": "rollout.temperature in OpenRLHF is sampling.temperature=… here",
    "learning_rate=0.1": "learning_rate in TRL is policy.lr=… here",
    "policy.learning_rate=0.1": "learning_rate in TRL is policy.lr=… here",
    "kl_coef=0.1": "kl_coef in TRL is ppo.kl.coef=… here",
    "ppo.epsilon=0.1": "epsilon in TRL is ppo.clip=… here",
    "loss_fn.ratio_clip_max=0.3": "loss_fn.ratio_clip_max in NeMo RL is ppo.clip_high=… here",
    "clip_ratio=0.1": "actor_rollout_ref.actor.clip_ratio in verl is ppo.clip=… here",
}


@pytest.mark.parametrize("override", SAYS)
def test_override_with_key_of_other_library_gets_hint_with_lockstep_option(
    override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "ppo_arithmetic", override]) == 2
    message = capsys.readouterr().err
    assert SAYS[override] in message
    assert message.count("\n") == 1


def test_recipe_with_section_of_other_library_gets_hint_with_lockstep_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("base: grpo_arithmetic\nactor_rollout_ref: {rollout: {temperature: 1.0}}\n")
    assert main(["config", str(recipe)]) == 2
    assert (
        "actor_rollout_ref.rollout.temperature in verl is sampling.temperature=… here"
        in capsys.readouterr().err
    )


def test_hydra_overrides_get_a_hint_for_each_key(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = (
        "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 "
        "actor_rollout_ref.actor.optim.lr=1e-6 +trainer.n_gpus_per_node=8"
    )
    assert main(["train", "grpo", *overrides.split()]) == 2
    lines = capsys.readouterr().err.splitlines()
    for text in (
        "algorithm.adv_estimator=grpo: algorithm is a mapping",
        "rollout.n=4: unknown option actor_rollout_ref.rollout.n; ",
        "optim.lr=1e-6: unknown option actor_rollout_ref.actor.optim.lr; ",
        "+trainer.n_gpus_per_node=8: unknown option trainer.n_gpus_per_node; ",
    ):
        assert sum(text in line for line in lines) == 1, text


def test_flags_of_trl_get_a_hint_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "grpo", "--model_name_or_path", "model", "--learning_rate", "1e-6"]) == 2
    model, rate = capsys.readouterr().err.splitlines()
    assert "--model_name_or_path model: unknown option" in model
    assert "model_name_or_path in TRL is model.path=… here" in model
    assert "learning_rate in TRL is policy.lr=… here" in rate


class Hidden:
    """A finder that knows no `lockstep_convert`, as where only `lockstep` is installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] == "lockstep_convert":
            raise ModuleNotFoundError(name)
        return None


def test_missing_lockstep_convert_gives_plain_error_without_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "lockstep_convert"]:
        monkeypatch.delitem(sys.modules, name)
    other_libraries.read_keys.cache_clear()
    try:
        assert main(["config", "ppo_arithmetic", "learning_rate=1"]) == 2
        assert "unknown option learning_rate" in (said := capsys.readouterr().err)
        assert "other libraries" not in said
        assert main(["convert", "any.yaml"]) == 2
        assert "lockstep_convert is not installed" in capsys.readouterr().err
    finally:
        other_libraries.read_keys.cache_clear()
