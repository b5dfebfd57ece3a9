"""Online DPO as its users run it: it learns from its own answers, resumes to the bit, and drops
ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from killing import assert_same, copy_unfinished, final
from pairs_runs import of_steps
from tiny_recipe import ONLINE_DPO

from lockstep.algorithms.online_dpo.job import pair_answers
from lockstep.core.batch import Batch
from lockstep.core.types import SamplingParams

Run = Callable[..., list[dict[str, Any]]]
NAN = float("nan")
PLAIN: list[float] = []
"""The losses of a run with which those with an option are compared; it is made once."""


TINY_RECIPE = ONLINE_DPO


def answers(scores: list[float]) -> Batch:
    """Four answers to each prompt, each of a prompt's token and two of its own."""
    count = len(scores)
    tokens = torch.tensor([[9, n % 4, 7] for n in range(count)]).flatten()
    mask = torch.tensor([False, True, True]).repeat(count)
    columns = {"mask": mask, "old_logprob": torch.zeros(len(mask))}
    sampling = SamplingParams(max_tokens=2, temperature=0.5)
    return Batch(
        tokens, torch.full((count,), 3), columns, {"score": torch.tensor(scores)}, sampling
    )


def test_highest_and_lowest_scored_answers_form_pair_and_ties_are_dropped_and_counted() -> None:
    found, metrics = pair_answers(
        answers([0.5, NAN, 2.0, -1.0, 1.0, 1.0, 1.0, NAN, NAN, NAN, 3.0, NAN]), 4
    )
    assert found is not None
    assert [tokens.tolist() for tokens in found.sequences()] == [[9, 2, 7], [9, 3, 7]]
    assert (found["score"].tolist(), found.group_size) == ([2.0, -1.0], 2)
    assert found.sampling is None, "DPO's log π is the policy's own, at temperature 1"
    assert metrics.floats() == pytest.approx(
        {"ok": 1 / 3, "tie": 1 / 3, "unscored": 1 / 3, "identical": 0.0}
    )
    assert not len(pair_answers(answers([1.0] * 4), 4)[0])


def test_resumed_online_dpo_run_has_bit_identical_metrics_and_weights(run: Run) -> None:
    options = ("run.max_steps=4", "run.save_every=2", "optimizer.lr=1e-2")
    whole = run("run.folder=whole", *options)
    assert all(row["agreement/mismatches"] == 0 for row in whole if "agreement/mismatches" in row)
    assert of_steps(whole, "policy/preference_loss")[0] == pytest.approx(0.693147, abs=1e-5)
    copy_unfinished(4)
    assert run("run.folder=stopped", *options) == whole
    assert_same(final("whole"), final("stopped"))


def test_online_dpo_step_without_pair_skips_the_update(run: Run) -> None:
    rows = run("reward.function=rewards.py:constant", "run.max_steps=1")
    assert (of_steps(rows, "train/tie"), of_steps(rows, "policy/updates_skipped")) == ([1.0], [1.0])


@pytest.mark.parametrize(
    "option",
    ["online_dpo.ref_policy_kl_penalty=1", "online_dpo.num_generations=2", "online_dpo.preference_loss=rpo_sq",
     "online_dpo.label_smoothing=0.2", "online_dpo.sft_loss_weight=0.5", "sampling.temperature=0.5"],
)  # fmt: skip
def test_every_online_dpo_option_changes_the_loss(run: Run, option: str) -> None:
    PLAIN[:] = PLAIN or of_steps(run(), "policy/loss")
    assert of_steps(run(option, "run.folder=other"), "policy/loss") != PLAIN
