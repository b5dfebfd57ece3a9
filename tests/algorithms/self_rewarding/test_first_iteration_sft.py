"""Self-rewarding training whose first iteration is SFT on the answers of the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from self_rewarding_runs import Run, equal, held, trained
from tiny_recipe import SELF_REWARDING
from training import train_rows

from lockstep.config.loading import RecipeError
from lockstep.run.stop import StoppedRun

FIRST = "self_rewarding.first_iteration_sft=true"
NO_VALIDATION = {"validation_reward": None, "validation_sampling": None}


TINY_RECIPE = SELF_REWARDING | NO_VALIDATION


def test_first_iteration_sft_matches_standalone_sft_run_exactly(run: Run) -> None:
    rows = run(FIRST, "agreement.exact=false")[:4]  # as sft computes, which samples nothing
    sft = {name: SELF_REWARDING[name] for name in ("model", "data", "learner", "optimizer")}
    sft |= {"algorithm": "sft", "sft": {"global_batch_size": 8, "max_tokens": 56}}
    Path("sft.yaml").write_text(
        yaml.safe_dump(sft | {"run": {"max_steps": 2, "save_every": 1, "keep": 9}})
    )
    alone = train_rows("sft.yaml", "run.folder=sft")
    for own, other in zip(rows[:2], (row for row in alone if "policy/loss" in row), strict=True):
        assert other.items() <= own.items()
    assert equal(held(1, "policy"), held(1, "policy", "sft"))
    assert equal(held(2, "policy"), held(2, "policy", "sft"))
    assert [row["train/iteration"] for row in rows] == [0, 0, 1, 1]
    assert not any(name.startswith(("judge/", "weight_sync/")) for row in rows[:2] for name in row)


def test_reference_of_second_iteration_is_the_sft_policy(run: Run) -> None:
    rows = run(FIRST)[:4]
    assert not equal(held(1, "policy"), held(1, "reference"))
    assert equal(held(3, "reference"), held(2, "policy"))
    assert equal(held(4, "reference"), held(3, "reference"))
    assert [row["weight_sync/version"] for row in rows[2:]] == [2, 2]
    assert [row["step"] for row in trained()] == [3] * 8 + [4] * 8


@pytest.mark.full
def test_first_iteration_sft_run_stopped_after_each_step_resumes_bit_identically(run: Run) -> None:
    whole = run(FIRST, "run.folder=whole")
    for _ in range(3):
        with pytest.raises(StoppedRun):
            run(FIRST, "run.folder=parts", "run.max_time_s=0.01")
    assert run(FIRST, "run.folder=parts") == whole
    for name in ("policy", "reference"):
        assert equal(held(4, name, "whole"), held(4, name, "parts"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "self_rewarding={max_iterations: 1, length_control: 0.0}",
            "first_iteration_sft takes the only iteration",
        ),
    ],
)
def test_first_iteration_sft_is_rejected_with_a_single_iteration(
    run: Run, override: str, said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        run(FIRST, override)
