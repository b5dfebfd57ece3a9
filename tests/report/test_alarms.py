"""The alarms that a run's metrics tell."""

from __future__ import annotations

import math

import pytest

from lockstep.report.alarms import find_alarms


def rows(**columns: list[float]) -> list[dict[str, float]]:
    """Lines of metrics from columns, whose names have `__` for the slash."""
    count = len(next(iter(columns.values())))
    return [
        {"step": step + 1, **{name.replace("__", "/"): values[step] for name, values in columns.items()}}
        for step in range(count)
    ]


def test_a_broken_bound_is_an_alarm_for_each_stretch_of_steps() -> None:
    found = find_alarms(
        rows(
            agreement__token_mult_prob_error=[1.0, 1.2, 1.3, 1.0, 1.4],
            agreement__bound=[1.001] * 5,
            agreement__breach=[0, 1, 1, 0, 1],
        )
    )
    assert [(alarm.first, alarm.last) for alarm in found] == [(2, 3), (5, 5)]
    assert found[0].text == "sampler and learner disagree: mean e^|Δ| 1.2, bound 1.001"
    assert {alarm.metric for alarm in found} == {"agreement/token_mult_prob_error"}


def test_drift_and_numbers_that_are_none() -> None:
    found = find_alarms(rows(watch__alarm=[0, 1], policy__loss=[0.1, math.nan], critic__grad_norm=[math.inf, 1.0]))
    assert [(alarm.metric, alarm.first) for alarm in found] == [
        ("critic/grad_norm", 1),
        ("watch/alarm", 2),
        ("policy/loss", 2),
    ]
    assert "policy/loss is nan" in found[2].text


def test_a_healthy_run_has_none_and_a_step_without_the_metric_ends_no_stretch() -> None:
    healthy = rows(
        train__reward_min=[0.0] * 9, train__reward_max=[1.0] * 9, train__reward=[0.5] * 9, policy__loss=[0.1] * 9
    )
    assert find_alarms(healthy) == []
    held_out = {"step": 2, "validation/accuracy": 0.5}
    truncated = rows(train__truncated=[1.0, 1.0])
    assert len(find_alarms([truncated[0], held_out, truncated[1]])) == 1


def quitting(shares: list[float], reward: list[float], cut_off: float) -> list[str]:
    constant = {"train__reward_cut_off": [cut_off] * 20, "train__reward_min": [-1.0] * 20}
    found = find_alarms(rows(train__truncated=shares, train__reward=reward, **constant))
    return [alarm.text for alarm in found if alarm.metric == "train/truncated"]


RISING, RISEN = [0.02 * step for step in range(20)], [0.5 + 0.05 * step for step in range(20)]


def test_a_policy_that_learns_to_be_cut_off_is_one() -> None:
    (text,) = quitting(RISING, RISEN, 0.5)
    assert text.startswith("the share of responses that were cut off rose from ")
    assert "while the reward rose, and they earn 0.5 on average, others " in text


@pytest.mark.parametrize(
    ("shares", "reward", "cut_off"),
    [
        (RISING, RISEN, -0.9),  # longer thoughts, and those that are cut off are wrong
        (RISING, RISEN[::-1], 2.0),
        ([1.0] * 20, RISEN, 2.0),  # always cut off
        ([0.3 + 0.05 * (step % 2) for step in range(20)], RISEN, 2.0),
    ],
)
def test_a_policy_that_is_cut_off_and_gains_nothing_by_it_is_none(
    shares: list[float], reward: list[float], cut_off: float
) -> None:
    assert [text for text in quitting(shares, reward, cut_off) if "every response" not in text] == []


def excess(reward: list[float], error: float) -> list[tuple[int, int]]:
    count = len(reward)
    found = find_alarms(
        rows(train__reward=reward, train__best_reward=[1.0] * count, train__reward_error=[error] * count)
    )
    return [(alarm.first, alarm.last) for alarm in found]


def test_a_reward_above_that_of_the_best_policy_is_one() -> None:
    assert excess([1.3] * 20, 0.25) == [(12, 20)]  # four errors of the mean of twelve steps
    assert excess([1.01] * 10, 0.0) == [(10, 10)]
    assert excess([1.0] * 20, 0.0) == []
    assert excess([0.5, 1.5] * 20, 0.25) == []
