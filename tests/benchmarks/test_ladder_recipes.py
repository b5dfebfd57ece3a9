"""Recipes of the ladder's arms: what is trained before them, and what of this machine is in their digests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ladder.rung import Arm, Rung
from benchmarks.ladder.runs import Ladder
from benchmarks.ladder.tables import table
from lockstep.algorithms.grpo.options import GRPORecipe

REWARD = Arm("reward_arithmetic")
ARM = Arm("grpo_arithmetic", ("reward=null", "grpo.kl.coef=0.1"), before={"reward_model.path": REWARD})


def reward_model_of(arm: Arm, seed: int) -> str | None:
    section = arm.load(seed).expect(GRPORecipe).reward_model
    return None if section is None else section.path


def test_an_arm_is_rewarded_by_the_run_before_it_and_has_its_digest() -> None:
    other = replace(ARM, before={"reward_model.path": replace(REWARD, options=("optimizer.lr=1.0e-3",))})
    assert reward_model_of(ARM, 3) == str(REWARD.load(3).run_folder)
    assert len({reward_model_of(ARM, 3), reward_model_of(ARM, 4), reward_model_of(other, 3)}) == 3
    assert ARM.load(3).digest != other.load(3).digest


def test_a_rung_without_its_assets_is_left_out_and_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("LOCKSTEP_ASSETS", raising=False)
    arm = Arm("grpo", ("model.path=$LOCKSTEP_ASSETS/model",))
    rung = Rung("absent", "Is it there?", "train/reward", {"grpo": arm}, needs_assets=True)
    Ladder(tmp_path, 1).run([rung], [], None)
    assert "set LOCKSTEP_ASSETS" in capsys.readouterr().out
    assert "set LOCKSTEP_ASSETS" in table(rung)
