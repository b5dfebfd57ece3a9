"""Hostile replies of judges: a verdict is a value only where the reply has exactly one reading."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from verdict_cases import SCORES, WINNERS

from lockstep.judge.verdicts import CAUSES, ScoreParser, WinnerParser

SCORE = ScoreParser(0, 5, "score|points", decimals=True)
WINNER = WinnerParser("winner")

BETWEEN = (
    *(
        " → ",
        " -> ",
        " => ",
        "->",
        " × ",
        " (+",
        " or maybe ",
        ", no, ",
        ", make that ",
        ". Sorry, I mean ",
    ),
    *(
        ". On reflection: ",
        "\nEdit: ",
        "\nI take that back, it is a ",
        ". Wait, ",
        "; I'd say ",
        ", but I would give ",
    ),
    *(
        " ~ ",
        "~",
        " & ",
        " / ",
        " = ",
        " to ",
        "–",
        " up to ",
        " vs. ",
        ", then ",
        " plus ",
        " minus ",
    ),
)
"""What makes a second value another reading."""
DRESSES = st.sampled_from(["{}", "**{}**", "`{}`", "<{}>", "[[{}]]", '"{}"', "_{}_", "({})"])
REASONS = st.lists(
    st.sampled_from(
        ["It", "is", "right", "in", "all", "respects", "since", "the", "steps", "hold", "well"]
    ),
    max_size=9,
).map(" ".join)
HOSTILE = st.text(
    alphabet="Score:Winner 0123456789.,/-+*<>[]()~%→×?!\n\"'`“”\u200b\u202e½AB=", max_size=60
)


@pytest.mark.parametrize("reply", SCORES)
def test_judge_reply_parses_to_expected_score_or_none(reply: str) -> None:
    assert SCORE(reply).value == SCORES[reply]


@pytest.mark.parametrize("reply", WINNERS)
def test_judge_reply_parses_to_expected_winner_or_none(reply: str) -> None:
    assert WINNER(reply).value == WINNERS[reply]


@given(st.permutations(range(6)), st.sampled_from(BETWEEN), DRESSES, REASONS)
def test_judge_reply_with_two_scores_has_no_verdict(
    values: list[int], between: str, dress: str, reasons: str
) -> None:
    assume(not (between == " / " and values[1] == 5))  # "2 / 5" is one score, and its scale
    said = dress.format(f"{values[0]}")
    assert SCORE(f"{reasons}\nScore: {said}{between}{values[1]}").value is None


@given(
    st.permutations("AB"),
    st.sampled_from([one for one in BETWEEN if one not in (" × ", "~", " ~ ", " (+")]),
    REASONS,
)
def test_judge_reply_with_two_winners_has_no_verdict(
    names: list[str], between: str, reasons: str
) -> None:
    assert WINNER(f"{reasons}\nWinner: {names[0]}{between}{names[1]}").value is None


@given(
    st.integers(0, 50),
    DRESSES,
    REASONS,
    REASONS,
    st.sampled_from(["", "/5", " out of 5", " (out of 5)"]),
)
def test_judge_reply_with_one_score_parses_to_it(
    tenths: int, dress: str, before: str, after: str, scale: str
) -> None:
    assert (
        SCORE(f"{before}\nScore: {dress.format(f'{tenths / 10:g}')}{scale}\n{after}").value
        == tenths / 10
    )


def check_any(reply: str) -> None:
    score, winner = SCORE(reply), WINNER(reply)
    assert score.cause in CAUSES if score.value is None else 0 <= score.value <= 5
    assert winner.cause in CAUSES if winner.value is None else winner.value in ("A", "B")
    assert isinstance(SCORE.without_score(reply), str)


@given(HOSTILE)
def test_fuzzed_judge_reply_gives_valid_verdict_or_known_cause(reply: str) -> None:
    check_any(reply)


@pytest.mark.proof
@settings(max_examples=10_000)
@given(
    st.one_of(HOSTILE, HOSTILE.map("Score: ".__add__), HOSTILE.map("Winner: ".__add__), st.text())
)
def test_10000_fuzzed_judge_replies_give_valid_verdict_or_known_cause(reply: str) -> None:
    check_any(reply)
