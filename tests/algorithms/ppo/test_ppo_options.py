"""Every option of the PPO recipe, in a loop of its own, and what it must change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import final
from row_files import read_rows
from safetensors.torch import load_file

Run = Callable[..., list[dict[str, Any]]]


def last(rows: list[dict[str, Any]], name: str) -> float:
    """The newest value of a metric."""
    return [row[name] for row in rows if name in row][-1]


def test_plain_ppo_trains_policy_and_critic_and_logs_steps_and_samples(
    run: Run, in_tmp: Path
) -> None:
    rows = run()
    assert [row["step"] for row in rows if "train/reward" in row] == [1, 2]
    assert [row["step"] for row in rows if "validation/reward" in row] == [0, 2]
    assert last(rows, "agreement/max_abs_logprob_diff") < 1e-5
    assert last(rows, "weight_sync/attested") > 0
    assert last(rows, "critic/grad_norm") > 0
    assert last(rows, "policy/grad_norm") > 0
    initial, trained = load_file("run/initial/model.safetensors"), final("run")
    assert any(not torch.equal(initial[name], trained[name]) for name in trained)
    samples = read_rows("run/samples.jsonl")
    assert {"prompt", "response", "score", "step", "answer"} <= samples[0].keys()
    held_out = [row for row in samples if "held_out" in row]
    assert [row["step"] for row in held_out[::8]] == [0, 2]
    assert [row["id"] for row in held_out[:8]] == [row["id"] for row in held_out[8:]]
    assert {row["id"].partition(":")[0] for row in held_out} == {"validation.jsonl"}


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["ppo.gamma=0.5"], "critic/returns_mean"),
        (["ppo.reward_scaling={source: [0, 1], target: [-1, 1]}"], "train/shaped_reward"),
        (["ppo.overlong_penalty={buffer: 6}"], "train/shaped_reward"),
        (["ppo.truncation_penalty=0.5"], "train/shaped_reward"),
        (["ppo.overlong_filtering=true"], "train/trained_tokens"),
        (["ppo.entropy_coef=0.5"], "policy/entropy"),
    ],
)
def test_each_ppo_option_changes_the_metric_it_affects(
    run: Run, overrides: list[str], changes: str
) -> None:
    """Options that tests/contract/test_ppo_composes_its_options.py leaves out."""
    plain = run("run.folder=plain")
    changed = run("run.folder=changed", *overrides)
    assert last(plain, changes) != pytest.approx(last(changed, changes), rel=1e-6)
    if changes == "train/shaped_reward":
        assert last(changed, changes) < last(plain, changes), "penalties are subtracted"


def test_dynamic_sampling_fails_after_max_batches_of_equal_rewards(run: Run) -> None:
    with pytest.raises(
        ValueError, match="found 0 of 8 prompts with differing rewards in 2 batches"
    ):
        run("ppo.dynamic_sampling={max_batches: 2}", "reward.function=rewards.py:constant")


def test_ppo_kl_to_reference_starts_at_zero_and_is_logged_only_if_enabled(run: Run) -> None:
    rows = run("ppo.kl.coef=0.1", "policy.lr=0.05")
    assert rows[1]["train/kl"] == pytest.approx(0.0, abs=1e-6)
    assert abs(last(rows, "train/kl")) > 1e-4
    assert not any("train/kl" in row for row in run("run.folder=without"))


def test_validation_rollouts_use_validation_sampling_options(run: Run) -> None:
    rows = run("validation_sampling.max_tokens=3", "data.max_validation_samples=4")
    assert last(rows, "validation/response_length_max") <= 3
    assert last(rows, "train/response_length_max") > 3
