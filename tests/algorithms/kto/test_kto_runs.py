"""KTO as its users run it: on labeled rows, stopped and resumed, with each option, and with rows
without labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from killing import assert_same, copy_unfinished, final
from pairs_runs import of_steps
from tiny_recipe import KTO

from lockstep.algorithms.kto.job import mismatch_completions
from lockstep.core.errors import InputError
from lockstep.core.types import Prompt
from lockstep.data.answers import AnsweredRow

Run = Callable[..., list[dict[str, Any]]]
PLAIN: list[float] = []
"""The losses of a run with which those with an option are compared; it is made once."""


TINY_RECIPE = KTO


def test_kto_raises_rewards_of_desirable_answers_above_undesirable(run: Run) -> None:
    rows = run("run.max_steps=8", "optimizer.lr=1e-2", "run.validate_every=8")
    loss, point = of_steps(rows), of_steps(rows, "train/reference_point")
    assert (loss[0], point[0]) == (0.5, 0.0), (
        "at the initial policy every row is at its reference point"
    )
    assert loss[-1] < 0.4
    assert min(point) >= 0 < max(point)
    good, bad = (
        of_steps(rows, f"validation/rewards_{name}")[-1] for name in ("desirable", "undesirable")
    )
    assert good > bad + 0.5
    assert (
        of_steps(rows, "validation/lengths_desirable")[0]
        > of_steps(rows, "validation/lengths_undesirable")[0]
    )


def test_kto_resume_is_bit_identical_and_micro_batches_keep_reference_point(
    run: Run,
) -> None:
    options = ("run.max_steps=4", "run.save_every=2", "optimizer.lr=1e-2")
    whole = run("run.folder=whole", *options)
    copy_unfinished(4)
    assert run("run.folder=stopped", *options) == whole
    assert_same(final("whole"), final("stopped"))
    cut = run("run.folder=cut", "learner.micro_batch_tokens=160", *options)
    for name in ("train/reference_point", "train/loss", "train/grad_norm"):
        assert of_steps(cut, name) == pytest.approx(of_steps(whole, name), rel=1e-4)


@pytest.mark.parametrize(
    "option",
    ["kto.ref_policy_kl_penalty=0.5", "kto.desirable_weight=2", "kto.undesirable_weight=0", "kto.global_batch_size=4",
     "data.completion='{answer}'"],
)  # fmt: skip
def test_every_kto_option_changes_the_loss(run: Run, option: str) -> None:
    PLAIN[:] = PLAIN or of_steps(run("run.max_steps=2"))
    assert of_steps(run("run.folder=other", "run.max_steps=2", option)) != PLAIN


def demonstration(prompt: int, completion: int) -> AnsweredRow:
    answer = tuple(range(10 * prompt, 10 * prompt + completion))
    return AnsweredRow(Prompt("", "", tuple(range(prompt)), {}), (answer,))


def test_kto_mismatch_pairs_prompt_with_answer_of_next_different_prompt_within_limit() -> None:
    rows = [demonstration(1, 2), demonstration(2, 9), demonstration(9, 1)]
    found = mismatch_completions(rows, 10)
    assert [len(row.prompt.tokens) for row in found] == [1, 2, 9]
    assert [row.answers[0] for row in found] == [
        rows[1].answers[0],
        rows[2].answers[0],
        rows[0].answers[0][:1],
    ]
    # two answers to one prompt
    twice = [demonstration(2, 3), demonstration(2, 4), demonstration(3, 5)]
    assert [row.answers[0] for row in mismatch_completions(twice, 10)] == [
        twice[i].answers[0] for i in (2, 2, 0)
    ]
    with pytest.raises(InputError, match="all 2 rows of a step or validation have the same prompt"):
        mismatch_completions(twice[:2], 10)
