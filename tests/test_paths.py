"""`~` and variables in paths, wherever a path is named."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.config.loading import load
from lockstep.errors import InputError
from lockstep.paths import expand, path_argument


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
def test_what_a_shell_would_replace_is_replaced(written: str, meant: str) -> None:
    assert expand(written) == path_argument(written) == meant


@pytest.mark.parametrize("written", ["$NOWHERE/run", "${NOWHERE}", "~no.such.user/run", "", " ", "a\0b"])
def test_what_stands_for_nothing_is_refused(written: str) -> None:
    with pytest.raises(InputError):
        expand(written)
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
    "known.judgements": ("self_rewarding_meta_small",),
    "known.comparisons": ("self_rewarding_meta_small",),
    "judge.path": ("judge_eval", "data.ranked=r"),
    "data.ranked": ("judge_eval", "judge.path=j"),
    "data.prompts": ("generate", "model.path=m"),
}


@pytest.mark.parametrize("key", PATHS)
def test_every_path_of_a_recipe_is_expanded(key: str) -> None:
    recipe, *overrides = PATHS[key]
    value: object = load(recipe, [*overrides, f"{key}=$DISK/x"]).dump()
    for part in key.split("."):
        assert isinstance(value, dict)
        value = value[part]
    assert value == "/mnt/disk/x"


def test_files_of_a_list_are_expanded() -> None:
    loaded = load("sft_chat", ["model.path=m", "data.train=[~/a.jsonl, $DISK/b.jsonl]"])
    assert loaded.dump()["data"]["train"] == ["/home/me/a.jsonl", "/mnt/disk/b.jsonl"]


def test_a_recipe_is_found_by_such_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text("base: ~/other.yaml\n")
    (tmp_path / "other.yaml").write_text("base: sft_arithmetic\nseed: 7\n")
    assert load("~/mine.yaml").dump()["seed"] == 7


@pytest.mark.parametrize("command", ["check $NOWHERE/run", "export run $NOWHERE", "eval m d --out $NOWHERE"])
def test_arguments_of_commands_are_paths_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(command.split())
    assert left.value.code == 2
    assert "the variable NOWHERE of the path $NOWHERE" in capsys.readouterr().err
