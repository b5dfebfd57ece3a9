"""The alarms that a run's metrics tell."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lockstep.report.alarms import LiveAlarms, find_alarms


def rows(**columns: list[float]) -> list[dict[str, float]]:
    """Lines of metrics from columns, whose names have `__` for the slash."""
    count = len(next(iter(columns.values())))
    return [
        {
            "step": step + 1,
            **{name.replace("__", "/"): values[step] for name, values in columns.items()},
        }
        for step in range(count)
    ]


def test_agreement_breaches_give_one_alarm_with_a_count() -> None:
    found = find_alarms(
        rows(
            agreement__token_mult_prob_error=[1.0, 1.2, 1.3, 1.0, 1.4],
            agreement__bound=[1.001] * 5,
            agreement__breach=[0, 1, 1, 0, 1],
        )
    )
    (alarm,) = found
    assert alarm.metric == "agreement/token_mult_prob_error"
    disagree = "sampler and learner disagree: mean e^|Δ| 1.4, bound 1.001"
    assert alarm.sentence == f"3 steps between 2 and 5: {disagree}"
    assert replace(alarm, steps=(2, 3)).sentence == f"steps 2 to 3: {disagree}"
    assert replace(alarm, steps=(5,)).sentence == f"step 5: {disagree}"


def test_watch_alarm_and_non_finite_metrics_give_alarms() -> None:
    found = find_alarms(
        rows(watch__alarm=[0, 1], policy__loss=[0.1, math.nan], critic__grad_norm=[math.inf, 1.0])
    )
    assert [(alarm.metric, alarm.steps[0]) for alarm in found] == [
        ("critic/grad_norm", 1),
        ("watch/alarm", 2),
        ("policy/loss", 2),
    ]
    assert "policy/loss is nan" in found[2].text


def test_healthy_run_has_no_alarm_and_missing_metric_does_not_split_one() -> None:
    healthy = rows(
        train__reward_min=[0.0] * 9,
        train__reward_max=[1.0] * 9,
        train__reward=[0.5] * 9,
        policy__loss=[0.1] * 9,
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


def test_rising_truncation_with_rising_reward_gives_alarm() -> None:
    (text,) = quitting(RISING, RISEN, 0.5)
    assert text.startswith("truncated responses rose from ")
    assert "while the reward rose; their mean reward is 0.5, that of other responses " in text


@pytest.mark.parametrize(
    ("shares", "reward", "cut_off"),
    [
        (RISING, RISEN, -0.9),  # longer thoughts, and those that are cut off are wrong
        (RISING, RISEN[::-1], 2.0),
        ([0.3 + 0.05 * (step % 2) for step in range(20)], RISEN, 2.0),
    ],
)
def test_truncation_without_reward_gain_gives_no_alarm(
    shares: list[float], reward: list[float], cut_off: float
) -> None:
    assert [
        text for text in quitting(shares, reward, cut_off) if "every response" not in text
    ] == []


def excess(reward: list[float], error: float) -> list[tuple[int, int]]:
    count = len(reward)
    found = find_alarms(
        rows(
            train__reward=reward,
            train__best_reward=[1.0] * count,
            train__reward_error=[error] * count,
        )
    )
    return [(alarm.steps[0], alarm.steps[-1]) for alarm in found]


def test_reward_above_declared_best_gives_alarm() -> None:
    assert excess([1.3] * 20, 0.25) == [(12, 20)]  # four errors of the mean of twelve steps
    assert excess([1.01] * 10, 0.0) == [(10, 10)]
    assert excess([1.0] * 20, 0.0) == []
    assert excess([0.5, 1.5] * 20, 0.25) == []


@pytest.mark.parametrize(
    ("counts", "causes"),
    [
        ({"train/no_verdict": 8.0}, "8 had no verdict"),
        (
            {"train/truncated": 1.0, "agreement/sequences_masked": 8.0},
            "100% were truncated, 8 were masked for sampler mismatch",
        ),
        ({}, "none has trainable tokens"),
    ],
)
def test_step_without_trained_tokens_gives_alarm_with_cause(
    counts: dict[str, float], causes: str
) -> None:
    found = find_alarms([{"step": 1, "train/trained_tokens": 0.0, **counts}])
    assert f"no response was trained on: {causes}" in [alarm.text for alarm in found]


def test_missing_verdicts_give_alarm_only_if_every_response_lacks_one() -> None:
    texts = [
        alarm.text
        for alarm in find_alarms(rows(train__no_verdict=[1.0, 8.0], train__reward=[0.5, math.nan]))
    ]
    assert texts == ["the reward returned no verdict for any response"]


def listen(values: list[dict[str, float]]) -> list[str]:
    notes: list[str] = []
    alarms = LiveAlarms(notes.append)
    for step, own in enumerate(values, 1):
        alarms.add_step(step, own)
    return notes


EQUAL, OTHER, MIXED, NONE = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0), ()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([EQUAL] * 40, ["step 5: all rewards in 5 steps were 1,"]),
        ([EQUAL] * 3 + [MIXED] + [EQUAL] * 4, []),
        ([EQUAL] * 4 + [OTHER] * 5, ["step 9: all rewards in 5 steps were 0,"]),
        (
            [OTHER] * 5 + [MIXED] * 9 + [OTHER] * 5,
            ["step 5: all rewards", "step 19: all rewards"],
        ),
        ([NONE] * 12, []),
    ],
)
def test_five_steps_of_equal_rewards_give_one_live_alarm(
    steps: list[tuple[float, ...]], said: list[str]
) -> None:
    names = ("train/reward_min", "train/reward_max", "train/reward")
    notes = listen([dict(zip(names, (*own, 0.5), strict=False)) for own in steps])
    assert len(notes) == len(said)
    assert all(note.startswith(f"ALARM, {start}") for note, start in zip(notes, said, strict=True))


def test_truncation_and_excess_reward_alarms_are_each_noted_once() -> None:
    names = (
        "reward_min",
        "reward_max",
        "reward",
        "truncated",
        "reward_cut_off",
        "best_reward",
        "reward_error",
    )
    shares = [0.02 * step for step in range(40)]
    values = [(-1.0, 9.0, 1 + own, own, 9.0, 1.0, 0.1) for own in shares]
    notes = listen(
        [{f"train/{name}": value for name, value in zip(names, row, strict=True)} for row in values]
    )
    assert [note.partition(": ")[0] for note in notes] == ["ALARM, step 11", "ALARM, step 13"]
    assert "rose from " in notes[0]
    assert "above the task's declared best of 1" in notes[1]
