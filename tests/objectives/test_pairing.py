"""Which two answers are learned from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.algorithms.self_rewarding.options import SelfRewardingSection
from lockstep.objectives.pairing import AnswerPair, PairCandidate, balance_classes, choose_pair


def answer(
    score: float | None, length: int = 3, finished: bool = True, variance: float | None = 0.0
) -> PairCandidate:
    return PairCandidate(tuple(range(length)), finished, score, variance)


def several(*scores: float | None) -> list[PairCandidate]:
    """Answers of different lengths, so that none is another."""
    return [answer(score, length=place + 1) for place, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("answers", "pair"),
    [
        (several(1.0, 4.0, 2.5), AnswerPair("ok", 1, 0)),
        (several(4.0, None, 1.0), AnswerPair("ok", 0, 2)),
        (several(3.0, 3.0), AnswerPair("tie")),
        (several(None, None, 3.0), AnswerPair("unscored")),
        (several(), AnswerPair("unscored")),
        ([answer(1.0), answer(4.0, finished=False)], AnswerPair("unfinished")),
        ([answer(1.0), answer(4.0)], AnswerPair("identical")),
        ([answer(1.0, 2), answer(2.0, 3), answer(5.0, 4, finished=False)], AnswerPair("ok", 1, 0)),
        # Equal scores: the verdicts that agree most; one verdict alone agrees with nobody.
        (
            [answer(4.0, 1, variance=0.5), answer(4.0, 2, variance=0.1), answer(0.0, 3)],
            AnswerPair("ok", 1, 2),
        ),
        (
            [answer(4.0, 1, variance=None), answer(4.0, 2, variance=2.0), answer(0.0, 3)],
            AnswerPair("ok", 1, 2),
        ),
    ],
)
def test_pair_without_length_control_has_highest_and_lowest_scored_answer(
    answers: list[PairCandidate], pair: AnswerPair
) -> None:
    assert choose_pair(answers, 0.0) == pair


scores = st.lists(
    st.tuples(st.sampled_from([None, 0.0, 1.0, 2.5, 4.0, 5.0]), st.integers(1, 9), st.booleans())
)


@given(scores, st.sampled_from([0.0, 0.1, 0.3, 0.45]))
def test_length_controlled_pair_has_shortest_high_scored_and_longest_low_scored_answer(
    rows: list[tuple[float | None, int, bool]], rho: float
) -> None:
    answers = [
        PairCandidate((place, *range(length)), done, score, 0.0)
        for place, (score, length, done) in enumerate(rows)
    ]
    pair = choose_pair(answers, rho)
    usable = [one for one in answers if one.finished and one.score is not None]
    values = [one.score for one in usable if one.score is not None]
    if len(usable) < 2 or min(values) == max(values):
        assert pair.status != "ok"
        return
    assert pair.chosen is not None
    assert pair.rejected is not None
    best, worst = max(values), min(values)
    high = [
        one
        for one in usable
        if one.score is not None and one.score >= (1 - rho) * best + rho * worst - 1e-12
    ]
    low = [
        one
        for one in usable
        if one.score is not None and one.score <= (1 - rho) * worst + rho * best + 1e-12
    ]
    chosen, rejected = answers[pair.chosen], answers[pair.rejected]
    assert chosen in high
    assert rejected in low
    if rho:
        assert len(chosen.tokens) == min(len(one.tokens) for one in high)
        assert len(rejected.tokens) == max(len(one.tokens) for one in low)


@given(st.floats(0.0, 0.99), st.integers(0, 500))
def test_room_for_judge_pairs_is_largest_count_within_configured_share(
    share: float, answers: int
) -> None:
    section = SelfRewardingSection(
        global_batch_size=10**6, use_meta_judge=True, meta_judge_pcnt=(0.5, share, 0)
    )
    room = section.room_for_judge_pairs(1, answers)
    assert room <= share * (room + answers) + 1e-6
    assert room + 1 > share * (room + 1 + answers) - 1e-6


@pytest.mark.parametrize(
    ("classes", "room", "share", "taken"),
    [
        ([1, 2, 3], 9, 1.0, [0, 1, 2]),
        ([5, 5, 5, 5], 4, 1.0, [0, 1, 2, 3]),
        ([5, 5, 5, 5], 4, 0.5, [0]),  # alone, one of a class is all that may be there
        ([5, 5, 4, 5, 3], 5, 0.5, [0, 1, 2, 4]),
        ([5, 4, 5, 4], 2, 0.5, [0, 1]),
        ([1, 2, 3], 0, 1.0, []),
        ([], 3, 0.4, []),
        ([1] * 29 + [2] * 21, 50, 0.58, [*range(50)]),  # .58 * 50 is 28.999… in floats
    ],
)
def test_balance_keeps_every_class_within_its_share(
    classes: list[int], room: int, share: float, taken: list[int]
) -> None:
    assert balance_classes(classes, room, share) == taken
