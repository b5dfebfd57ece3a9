"""From judged responses to figures: what counts, what is left out, and which answers are the
same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.objectives.estimates import MeanEstimate
from lockstep.rewards.math_reward import MathReward
from lockstep.rewards.options import RewardSection
from lockstep.rollouts.evaluation import GradedSample, GradingRule, grading, name_votes

MATH = GradingRule(pass_score=1.0, majority=True, graded=False)
EMPTY = GradedSample(0, "rows.jsonl:1", 0, "?", "", "18", None, None, 1, False)


def question(number: int, *answers: tuple[float | None, str | None]) -> list[GradedSample]:
    """One question's responses, as (score, vote)."""
    return [
        replace(EMPTY, question=number, draw=draw, score=score, vote=vote)
        for draw, (score, vote) in enumerate(answers)
    ]


def test_pass_at_k_and_majority_are_means_over_questions() -> None:
    samples = question(0, (1.0, "18"), (0.0, "7"), (0.0, "7")) + question(
        1, (1.0, "2"), (1.0, "2"), (1.0, "2")
    )
    figures = MATH.compute_figures(samples, (1, 3))
    assert {name: figure.value for name, figure in figures.items()} == pytest.approx(
        {"pass@1": (1 / 3 + 1) / 2, "pass@3": 1.0, "maj@3": 0.5}
    )
    assert list(figures) == ["pass@1", "pass@3", "maj@3"]
    assert all(
        figure.questions == 2 and figure.low < figure.value <= figure.high
        for figure in figures.values()
    )


def test_majority_vote_ignores_missing_answers_and_splits_ties() -> None:
    samples = question(
        0, (1.0, "18"), (1.0, "18"), (0.0, "7"), (0.0, None), (0.0, None), (0.0, None)
    )
    assert MATH.compute_figures(samples, (6,))["maj@6"].value == 1.0
    split = question(0, (1.0, "18"), (1.0, "18"), (0.0, "7"), (0.0, "7"), (0.0, "8"), (0.0, "9"))
    assert MATH.compute_figures(split, (6,))["maj@6"].value == 0.5


def test_responses_without_verdict_are_excluded_from_metrics_and_counted() -> None:
    samples = question(0, (1.0, "18"), (None, None)) + question(1, (None, None), (None, None))
    samples += question(2, (0.0, "7"), (0.0, "7"))
    figures = MATH.compute_figures(samples, (1, 2))
    assert (figures["pass@1"].value, figures["pass@1"].questions) == (0.5, 2)
    assert (figures["pass@2"].value, figures["pass@2"].questions) == (0.0, 1)
    assert (figures["maj@2"].value, figures["maj@2"].questions) == (0.0, 1)
    metrics = MATH.compute_metrics(samples, (1, 2)).floats()
    assert metrics["no_verdict"] == 3
    assert metrics["accuracy"] == metrics["pass@1"] == 0.5


def test_graded_rewards_have_mean_and_pass_at_k_only_with_pass_score() -> None:
    samples = question(0, (0.5, None), (2.5, None)) + question(1, (-1.0, None), (None, None))
    plain = grading(RewardSection(type="python", function="a.py:b")).compute_figures(
        samples, (1, 2)
    )
    assert {name: figure.value for name, figure in plain.items()} == {"reward": 0.25}
    passing = grading(
        RewardSection(type="python", function="a.py:b", pass_score=2.0)
    ).compute_figures(samples, (1, 2))
    assert {name: figure.value for name, figure in passing.items()} == {
        "reward": 0.25,
        "pass@1": 0.25,
        "pass@2": 1.0,
    }
    assert passing["pass@2"].questions == 1


def test_interval_of_rewards_in_unit_range_stays_in_it() -> None:
    def measure(*scores: float) -> MeanEstimate:
        samples = [one for i, score in enumerate(scores) for one in question(i, (score, None))]
        return GradingRule(None, majority=False, graded=True).compute_figures(samples, ())["reward"]

    nearly = measure(*[1.0] * 20, 0.9)
    assert 0.9 < nearly.low < nearly.value < nearly.high <= 1.0
    assert measure(*[1.0] * 20, 1.1).high > 1.0


@pytest.mark.parametrize(
    ("responses", "scores", "expected"),
    [
        (["#### 7", "#### 7.0", "#### $7", "#### 8"], [0.0] * 4, ["7", "7", "7", "8"]),
        (["#### 1/2", "so #### 0.5", "#### 2"], [0.0] * 3, ["1/2", "1/2", "2"]),
        (["#### 18.0", "#### 18", "#### 3"], [1.0, 1.0, 0.0], ["18.0", "18.0", "3"]),
        (["no marker", "####", "#### many", "#### 3"], [0.0] * 4, [None, None, None, "3"]),
        (["#### 5", "#### 5", "#### 6"], [None, 0.0, 0.0], [None, "5", "6"]),
    ],
)  # fmt: skip
def test_numerically_equal_answers_cast_the_same_vote(
    responses: list[str], scores: list[float | None], expected: list[str | None]
) -> None:
    count = len(responses)
    assert name_votes(MathReward("####"), ["?"] * count, responses, scores, count) == expected
