"""`~` and variables in paths, wherever a path is named."""

from __future__ import annotations

import argparse

import pytest
from ladder_recipes import rung

from lockstep.config.loading import load_recipe
from lockstep.core.errors import InputError
from lockstep.system.paths import expand_path, path_argument


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("DISK", "/mnt/disk")
    monkeypatch.delenv("NOWHERE", raising=False)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("~/run", "/home/me/run"),
        ("$HOME/run", "/home/me/run"),
        ("${DISK}/a/$DISK", "/mnt/disk/a//mnt/disk"),
        ("~/rewards.py:f", "/home/me/rewards.py:f"),
        ("./~run", "./~run"),
        ("a~b/run$", "a~b/run$"),
    ],
)
def test_tilde_and_variables_in_path_are_expanded(written: str, meant: str) -> None:
    assert expand_path(written) == path_argument(written) == meant


@pytest.mark.parametrize(
    "written", ["$NOWHERE/run", "${NOWHERE}", "~no.such.user/run", "", " ", "a\0b"]
)
def test_path_with_unknown_variable_or_user_or_no_text_is_rejected(written: str) -> None:
    with pytest.raises(InputError):
        expand_path(written)
    with pytest.raises(argparse.ArgumentTypeError):
        path_argument(written)


GSM8K = ("ppo_gsm8k", "model.path=m", "data.train=t")
PATHS = {
    "run.folder": GSM8K,
    "model.path": GSM8K,
    "model.from_recipe": ("ppo_arithmetic",),
    "data.train": GSM8K,
    "data.validation": GSM8K,
    "reward_model.path": (*GSM8K, "reward=null", "ppo.kl.coef=0.05"),
    "critic_model.path": GSM8K,
    "reward.function": (*GSM8K, "reward={type: python, marker: null}"),
    "known.judgments": (rung("self_rewarding_meta_small"),),
    "known.comparisons": (rung("self_rewarding_meta_small"),),
    "judge.path": ("eval_judge", "data.ranked=r"),
    "data.ranked": ("eval_judge", "judge.path=j"),
    "data.prompts": ("generate", "model.path=m"),
}


@pytest.mark.parametrize("key", PATHS)
def test_every_path_of_a_recipe_is_expanded(key: str) -> None:
    recipe, *overrides = PATHS[key]
    value: object = load_recipe(recipe, [*overrides, f"{key}=$DISK/x"]).dump_options()
    for part in key.split("."):
        assert isinstance(value, dict)
        value = value[part]
    assert value == "/mnt/disk/x"
