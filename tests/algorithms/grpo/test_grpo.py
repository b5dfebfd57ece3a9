"""GRPO and its relatives as their users run them: each learns, and each option changes what it
should.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from row_files import read_trained
from tiers import every
from tiny_recipe import GRPO
from training import step_rows

from lockstep.report.agreement import summarize_agreement

Run = Callable[..., list[dict[str, Any]]]
PLAIN: list[dict[str, Any]] = []
"""The steps of a run with which those with an option are compared; it is made once."""

RELATIVES = {
    "grpo": ["loss_mean=responses", "kl.coef=0.05"],
    "rloo": ["baseline=leave_one_out", "scale_rewards=none", "kl.coef=0.05", "kl.placement=reward"],
    "dr_grpo": ["scale_rewards=none", "loss_mean=constant"],
    "dapo": ["clip_high=0.28", "dynamic_sampling={}", "overlong_penalty={buffer: 4}"],
    "gspo": [
        "importance_sampling_level=sequence",
        "loss_mean=responses",
        "clip=0.0003",
        "clip_high=0.0004",
    ],
    "cispo": ["loss=cispo", "clip_high=2.0"],
    "reinforce_plus_plus": ["baseline=none", "scale_rewards=none", "whiten_advantages=true"],
}


TINY_RECIPE = GRPO


@pytest.mark.parametrize("relative", RELATIVES)
def test_every_grpo_variant_raises_reward_with_sampler_learner_agreement(
    run: Run, relative: str
) -> None:
    rows = step_rows(
        run(
            "run.max_steps=12",
            "policy.lr=0.02",
            *(f"grpo.{option}" for option in RELATIVES[relative]),
        )
    )
    assert rows[-1]["train/reward"] > rows[0]["train/reward"] + 0.05
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-4 for row in rows)
    assert all(row["policy/grad_norm"] > 0 for row in rows)
    assert summarize_agreement(rows).word == "AGREE"


@pytest.mark.parametrize(
    ("option", "changes"),
    every(
        3,
        [
            ("baseline=leave_one_out", "train/advantage_squared"),
            ("baseline=none grpo.scale_rewards=none", "train/advantage"),
            ("scale_rewards=batch", "train/advantage_squared"),
            ("scale_rewards=none", "train/advantage_squared"),
            ("loss_mean=responses", "policy/loss"),
            ("loss_mean=constant", "policy/loss"),
            ("importance_sampling_level=sequence", "policy/clip_fraction"),
            ("loss=cispo", "policy/loss"),
            ("whiten_advantages=true", "policy/loss"),
        ],
    ),
)
def test_each_grpo_option_changes_the_metric_it_affects(
    run: Run, option: str, changes: str
) -> None:
    fast = ("policy.lr=0.05", "grpo.clip=0.01", "reward.function=rewards.py:uneven")
    with Path("rewards.py").open("a") as file:
        file.write(
            "\n\ndef uneven(prompt, response, answer, row):\n    return len(set(response)) / 10\n"
        )
    plain = PLAIN or step_rows(run("run.folder=plain", *fast))
    PLAIN[:] = plain
    changed = step_rows(run("run.folder=changed", *fast, *f"grpo.{option}".split()))
    assert plain[-1][changes] != pytest.approx(changed[-1][changes], rel=1e-6)


def test_responses_without_verdict_are_excluded_from_grpo_baseline(run: Run) -> None:
    rows = step_rows(run("reward.function=rewards.py:often_none", "run.num_logged_samples=16"))
    assert all(row["train/no_verdict"] > 0 for row in rows)
    assert all(row["train/advantage_squared"] == 0.0 for row in rows), (
        "all verdicts are 1, so none is above its group"
    )
    samples = read_trained("run/samples.jsonl")
    assert {sample["score"] for sample in samples} == {None, 1.0}
