"""What a self-rewarding step tells, and when it is told that something goes wrong."""

from __future__ import annotations

import pytest
import torch

from lockstep.algorithms.job import StepResult
from lockstep.algorithms.self_rewarding.answers import Scored, answer_metrics, leak_test, pair_metrics
from lockstep.algorithms.self_rewarding.job import Collapse
from lockstep.algorithms.self_rewarding.options import SelfRewardingSection
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.core.types import Prompt
from lockstep.judge.judge import Judged, Judgement, mean_score
from lockstep.judge.verdicts import ScoreParser, Verdict
from lockstep.objectives.pairing import AnswerPair
from lockstep.rollouts.rollout import Rollouts
from lockstep.run.loop import StepEvent

SCORES = ScoreParser(0.0, 5.0, "score|points", True)


def judged(*verdicts: float | None) -> Judged[float]:
    causes = (Verdict(None, "no_match") if one is None else Verdict(one) for one in verdicts)
    return Judged(tuple(Judgement(verdict) for verdict in causes))


def scored(*verdicts: Judged[float]) -> Scored:
    return Scored([mean_score(one) for one in verdicts], verdicts, None)


def rollouts(responses: list[str]) -> Rollouts:
    """Each response has as many tokens as words, behind a prompt of one."""
    lengths = torch.tensor([1 + len(response.split()) for response in responses])
    mask = torch.cat([torch.arange(int(length)) > 0 for length in lengths])
    cut = torch.tensor([response.endswith("…") for response in responses])
    batch = Batch(torch.zeros(len(mask), dtype=torch.int64), lengths, {"mask": mask}, {"truncated": cut})
    return Rollouts(batch, [Prompt("a:1", "Q", (0,), {})] * len(responses), responses)


def test_answers_by_hand() -> None:
    written = rollouts(["one two", "Score: 4", "three words here", "cut off …"])
    verdicts = [judged(1.0, 3.0), judged(None, 5.0), judged(None, None), judged(5.0, 5.0)]
    metrics = answer_metrics(written, scored(*verdicts), leak_test(None, SCORES)).floats()
    assert metrics["generated_rewards"] == pytest.approx((2 + 5 + 5) / 3)
    assert metrics["generated_rewards_std"] == pytest.approx(2**0.5)
    assert metrics["judge_variance"] == pytest.approx((1 + 0) / 2)  # one verdict alone agrees with nobody
    assert metrics["top_class_share"] == 3 / 5
    assert metrics["leaks"] == 1 / 4
    assert metrics["response_lengths"] == (2 + 2 + 3 + 3) / 4
    assert metrics["bad_ends_per_GBS"] == 1 / 4


@pytest.mark.parametrize(
    ("answer", "leaks"),
    [
        ("4", 0), ("#### 4", 0), ("$4$.", 0), ("The score was 4 to 3.", 0), ("Score: many", 0), ("Score: 9", 0),
        ("It is good.\nScore: 4", 1), ("**Points:** 3/5", 1),
    ],
)  # fmt: skip
def test_only_what_announces_a_verdict_and_gives_one_is_a_leak(answer: str, leaks: float) -> None:
    assert answer_metrics(rollouts([answer]), scored(judged(1.0)), leak_test(None, SCORES)).floats()["leaks"] == leaks


def test_rows_by_what_became_of_them() -> None:
    pairs = [
        AnswerPair("ok", 0, 1),
        AnswerPair("tie"),
        AnswerPair("unscored"),
        AnswerPair("ok", 1, 0),
        AnswerPair("tie"),
    ]
    metrics = pair_metrics(pairs).floats()
    assert metrics["bad_samples_per_GBS"] == 3 / 5
    assert (metrics["pairs/ok"], metrics["pairs/tie"], metrics["pairs/unfinished"]) == (2 / 5, 2 / 5, 0)


def test_a_collapse_is_told_when_it_begins_and_when_it_begins_again() -> None:
    told: list[str] = []
    options = SelfRewardingSection(global_batch_size=8, max_leak_share=0.1, max_class_share=0.9)
    look = Collapse(options, told.append)
    for step, leaks in enumerate([0.0, 0.2, 0.3, 0.1, 0.5], start=1):
        values = {"train/leaks": leaks, "train/top_class_share": 0.9}
        look(StepEvent(step, StepResult(Metrics(), 0, 0), False, False, values))
    assert [line.split(" hold")[0] for line in told] == ["at step 2 20% of the answers", "at step 5 50% of the answers"]
