"""DPO as its users run it: stopped and continued, validated, on subsets, and with rows that are no
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import assert_same, copy_unfinished, final
from pairs_runs import of_steps, scored
from tiny_recipe import DPO

Run = Callable[..., list[dict[str, Any]]]
PLAIN: list[float] = []
"""The losses of a run with which those with an option are compared; it is made once."""


TINY_RECIPE = DPO


def test_dpo_loss_starts_at_ln_2_and_falls_as_validation_accuracy_reaches_one(run: Run) -> None:
    rows = run("run.max_steps=12", "optimizer.lr=1e-2", "run.validate_every=6")
    loss, held_out = of_steps(rows), of_steps(rows, "validation/loss")
    assert (loss[0], held_out[0]) == pytest.approx((math.log(2), math.log(2)), abs=1e-6)
    assert loss[-1] < 0.3
    assert (len(held_out), held_out[-1] < 0.4) == (3, True)
    assert of_steps(rows, "validation/acc")[-1] == 1.0
    assert rows[-1].keys() == rows[0].keys()
    assert {
        "train/grad_norm",
        "train/lr",
        "train/rewards_chosen_mean",
        "train/reject_lengths",
    } <= rows[1].keys()


def test_resumed_dpo_run_has_bit_identical_metrics_and_weights(run: Run) -> None:
    options = ("run.max_steps=4", "run.validate_every=2", "run.save_every=2")
    whole = run("run.folder=whole", *options)
    copy_unfinished(4)
    assert run("run.folder=stopped", *options) == whole
    assert_same(final("whole"), final("stopped"))


@pytest.mark.parametrize(
    "option",
    [
        "dpo.preference_loss=ipo", "dpo.preference_loss_weight=0.5", "dpo.sft_loss_weight=0.5",
        "dpo.preference_average_log_probs=true", "dpo.ref_policy_kl_penalty=0.5",
        "dpo.global_batch_size=4", "data.chosen='{chosen} {chosen}'", "data.rejected='{question}'",
        "optimizer.lr=1e-2", "data.shuffle=false",
    ],
)  # fmt: skip
def test_every_dpo_option_changes_the_loss(run: Run, option: str) -> None:
    PLAIN[:] = PLAIN or of_steps(run())
    assert of_steps(run("run.folder=other", option)) != PLAIN


def test_rpo_sq_loss_uses_row_scores_times_gt_reward_scale(run: Run, in_tmp: Path) -> None:
    data, plain = (
        scored(in_tmp),
        ["run.max_steps=1", "dpo.global_batch_size=12", "dpo.preference_loss=rpo_sq"],
    )
    rows = run(*data, *plain)
    aims = [1 + n % 3 - 0.5 for n in range(12)]
    assert of_steps(rows) == pytest.approx([sum(aim**2 for aim in aims) / 12])
    assert of_steps(rows, "train/chosen_generated_rewards") == [2.0]
    twice = run(*data, *plain, "dpo.gt_reward_scale=2", "run.folder=twice")
    assert of_steps(twice) == pytest.approx([4 * sum(aim**2 for aim in aims) / 12])
