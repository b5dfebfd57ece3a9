"""Metrics of a self-rewarding step, by hand."""

from __future__ import annotations

import pytest
import torch

from lockstep.algorithms.self_rewarding.answers import answer_metrics, pair_metrics
from lockstep.core.batch import Batch
from lockstep.core.types import Prompt
from lockstep.judge.judge import CaseJudgments, JudgeReply
from lockstep.judge.verdicts import JudgeVerdict
from lockstep.objectives.pairing import AnswerPair
from lockstep.rollouts.rollout import Rollouts


def judged(*verdicts: float | None) -> CaseJudgments[float]:
    causes = (
        JudgeVerdict(None, "no_match") if one is None else JudgeVerdict(one) for one in verdicts
    )
    return CaseJudgments(tuple(JudgeReply(verdict) for verdict in causes))


def rollouts(responses: list[str]) -> Rollouts:
    """Each response has as many tokens as words, behind a prompt of one."""
    lengths = torch.tensor([1 + len(response.split()) for response in responses])
    mask = torch.cat([torch.arange(int(length)) > 0 for length in lengths])
    cut = torch.tensor([response.endswith("…") for response in responses])
    batch = Batch(
        torch.zeros(len(mask), dtype=torch.int64), lengths, {"mask": mask}, {"truncated": cut}
    )
    return Rollouts(batch, [Prompt("a:1", "Q", (0,), {})] * len(responses), responses)


def test_answer_metrics_match_hand_computed_values() -> None:
    written = rollouts(["one two", "Score: 4", "three words here", "cut off …"])
    verdicts = [judged(1.0, 3.0), judged(None, 5.0), judged(None, None), judged(5.0, 5.0)]
    metrics = answer_metrics(written, verdicts).floats()
    assert metrics["generated_rewards"] == pytest.approx((2 + 5 + 5) / 3)
    assert metrics["generated_rewards_std"] == pytest.approx(2**0.5)
    # one verdict alone agrees with nobody
    assert metrics["judge_variance"] == pytest.approx((1 + 0) / 2)
    assert metrics["top_class_share"] == 3 / 5
    assert metrics["response_lengths"] == (2 + 2 + 3 + 3) / 4
    assert metrics["bad_ends_per_GBS"] == 1 / 4


def test_pair_metrics_give_share_of_rows_by_status() -> None:
    pairs = [
        AnswerPair("ok", 0, 1),
        AnswerPair("tie"),
        AnswerPair("unscored"),
        AnswerPair("ok", 1, 0),
        AnswerPair("tie"),
    ]
    metrics = pair_metrics(pairs).floats()
    assert metrics["bad_samples_per_GBS"] == 3 / 5
    assert (metrics["pairs/ok"], metrics["pairs/tie"], metrics["pairs/unfinished"]) == (
        2 / 5,
        2 / 5,
        0,
    )
