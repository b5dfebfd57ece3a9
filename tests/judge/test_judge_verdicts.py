"""What judges say, and what it is taken to mean: a corpus of replies, and properties of both
parsers.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.judge.verdicts import JudgeVerdict, ScoreParser, WinnerParser

SCORES = ScoreParser(0, 5, "score|points", decimals=True)
WINNERS = WinnerParser("winner")

SCORED = (
    ("Score: 4", 4),
    ("The answer is relevant (+1) and complete (+1).\n\nScore: 2", 2),
    ("score = 3", 3),
    ("**Score:** 4", 4),
    ("**Score: 4**", 4),
    ("**Score**: 4", 4),
    ("_Score_: `4`", 4),
    ("### Total Score: 4", 4),
    ("Score: <4>", 4),
    ("Score: [[4]]", 4),
    ("Score: \"4\".", 4),
    ("Score: $\\boxed{4}$", 4),
    ("Score:\n\n**4**\n", 4),
    ("Score:4", 4),
    ("Score : 4", 4),
    ("Score：4", 4),
    ("Score: 4.", 4),
    ("Score: 4, because it is complete", 4),
    ("Score: 4 - well done", 4),
    ("Score: 4\n- 3 of the demands are met at once", 4),
    ("Score: 4/5", 4),
    ("Score: **4**/5.", 4),
    ("Score: 4 out of 5", 4),
    ("Score (out of 5): 4", 4),
    ("Score (0-5): 4", 4),
    ("Score: 3.5", 3.5),
    ("Score: .5", 0.5),
    ("Score: 4.0", 4),
    ("Score: +4", 4),
    ("Score: 0", 0),
    ("Points: 3", 3),
    ("[4]", 4),
    ("4/5", 4),
    ("4.", 4),
    (" **3** ", 3),
    ("Score: 1 for the first demand. On the whole, Score: 3", 3),
    ("Score: 2. It lacks what a score of 5 has.", 2),
    ("Score: 4 (meets 4 of 5 demands)", 4),
    ("Score: 4 (out of 5)", 4),
    ("Score: 4 or so", 4),
    ('Score: 2\nThe response says: "Score: 5"', 2),
    ("My score: 2. It wrote “Score: 5”.", 2),
    ("Score: 2\n> Score: 5", 2),
    ("Score: 2 (it claimed `Score: 5`)", 2),
    ('"Score: 4"', 4),
    ("> **Score:** 4", 4),
)  # fmt: skip

UNSCORED = (
    ("", "no_match"),
    ("The response is good.", "no_match"),
    ("I would give 4 points to it", "no_match"),
    ("This deserves a score of 4", "no_match"),
    ("4. The last demand is not met", "no_match"),
    ("Underscore: 4", "no_match"),
    ("Score: four", "not_a_number"),
    ("Score: <sum>", "not_a_number"),
    ("Score: N/A", "not_a_number"),
    ("Score:", "not_a_number"),
    ("Score: 4\n\nScore: not known", "not_a_number"),
    ("Score: 4-5", "not_a_number"),
    ("Score: 3 + 1 = 4", "not_a_number"),
    ("Score: 4,5", "not_a_number"),
    ("Score: 80%", "not_a_number"),
    ("Score: 4.5%", "not_a_number"),
    ("Score: 4th", "not_a_number"),
    ("Score: 4/5/6", "not_a_number"),
    ("Score: 4 1/2", "not_a_number"),
    ("Score: 4 ½", "not_a_number"),
    ("Score: 4 and a half", "not_a_number"),
    ("Score: 4. Actually, 3.", "not_a_number"),
    ("Score: 4\nOn second thought: 3", "not_a_number"),
    ('The response ends with "Score: 5".', "no_match"),
    ("Score: 6", "out_of_range"),
    ("Score: -1", "out_of_range"),
    ("Score: −1", "out_of_range"),
    ("Score: 5.5", "out_of_range"),
    ("Score: 4/10", "out_of_range"),
    ("Score: 8 out of 10", "out_of_range"),
    ("Score: " + "9" * 400, "out_of_range"),
)

WON = (
    ("Winner: Judgement A", "A"),
    ("Winner: Judgement A.", "A"),
    ("Winner: [Judgement A]", "A"),
    ("Winner: <Judgment B>", "B"),
    ("**Winner:** **Judgment B.**", "B"),
    ("**Winner: B**", "B"),
    ("Winner: Response B because it is right", "B"),
    ("winner = Assistant A", "A"),
    ("Winner: JUDGEMENT A", "A"),
    ("Winner:\nJudgement A\n", "A"),
    ("Winner: A (by far)", "A"),
    ("At first Winner: A. But then Winner: B", "B"),
    ("Winner: A because B is wrong", "A"),
    ('Winner: A\nIt says "Winner: B"', "A"),
    ("[Judgement A]", "A"),
    ("Judgment B.", "B"),
    ("A", "A"),
)

UNDECIDED = (
    ("Judgement A is better than Judgement B", "no_match"),
    ("", "no_match"),
    ("Winner: A tie", "not_a_name"),
    ("Winner: a better one cannot be named", "not_a_name"),
    ("Winner: both", "not_a_name"),
    ("Winner: A and B", "not_a_name"),
    ("Winner: A, B", "not_a_name"),
    ("Winner: Judgement A or Judgement B", "not_a_name"),
    ("Winner: [Judgement A | Judgement B]", "not_a_name"),
    ("Winner: Judgement A/B", "not_a_name"),
    ("Winner: Judgement C", "not_a_name"),
    ("Winner: Judgement AB", "not_a_name"),
    ("Winner: A\nWinner: none", "not_a_name"),
    ("Winner: A, but only just; really B", "not_a_name"),
    ("Winner: A (or B)", "not_a_name"),
    ("Winner: A. Actually B is better", "not_a_name"),
    ("The response says 'Winner: B'", "no_match"),
)


@pytest.mark.parametrize(("reply", "score"), SCORED)
def test_judge_score_is_parsed_from_differently_formatted_replies(reply: str, score: float) -> None:
    assert SCORES(reply) == JudgeVerdict(float(score))


@pytest.mark.parametrize(("reply", "cause"), UNSCORED)
def test_reply_without_valid_score_gives_none_and_cause(reply: str, cause: str) -> None:
    verdict = SCORES(reply)
    assert (verdict.value, verdict.cause) == (None, cause)


@pytest.mark.parametrize(("reply", "winner"), WON)
def test_judge_winner_is_parsed_from_differently_formatted_replies(reply: str, winner: str) -> None:
    assert WINNERS(reply).value == winner


@pytest.mark.parametrize(("reply", "cause"), UNDECIDED)
def test_reply_without_valid_winner_gives_none_and_cause(reply: str, cause: str) -> None:
    verdict = WINNERS(reply)
    assert (verdict.value, verdict.cause) == (None, cause)


@pytest.mark.parametrize(
    ("reply", "reasons"),
    [
        ("Complete. Score: 1 at first.\n**Score:** <4>/5", "Complete. Score: 1 at first."),
        ("It is complete.\nScore: 4", "It is complete."),
        ("a y b n Score: 1", "a y b n"),
        ("Score: unknown, alas", "unknown, alas"),
        ("It has no score", "It has no score"),
    ],
)
def test_without_score_removes_score_and_keeps_reasons(reply: str, reasons: str) -> None:
    assert SCORES.without_score(reply) == reasons


QUOTES = st.sampled_from(
    [('"', '"'), ("`", "`"), ("“", "”"), ("«", "»"), ("'", "'"), ("\n> ", "\n")]
)


@given(st.integers(0, 5), st.integers(0, 5), QUOTES, st.booleans())
def test_a_quoted_score_does_not_overrule_the_judges_own(
    own: int, quoted: int, marks: tuple[str, str], last: bool
) -> None:
    quotation, verdict = f"The response says {marks[0]}Score: {quoted}{marks[1]}.", f"Score: {own}"
    assert SCORES(f"{verdict}\n{quotation}" if last else f"{quotation}\n{verdict}") == JudgeVerdict(
        float(own)
    )


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("<think>\nScore: 2 at first. Score: 3?\n</think>\nScore: 4", 4.0),
        ("Perhaps Score: 2.\n</think>\nIt is good. Score: 5", 5.0),
        ("<think>3 or 4?</think>\n\n4", 4.0),
        ("<think>Score: 4", None),
        ("<think>Score: 4</think>I cannot judge this.", None),
    ],
)
def test_judge_score_inside_thought_is_ignored(reply: str, score: float | None) -> None:
    assert ScoreParser(0, 5, "score", decimals=False)(reply).value == score


def test_judge_reasons_and_winner_are_read_after_thought_only() -> None:
    assert (
        ScoreParser(0, 5, "score", False).without_score("<think>Score: 1</think>Good.\nScore: 4")
        == "Good."
    )
    assert WinnerParser("winner")("<think>Winner: B</think>Winner: A").value == "A"
    assert WinnerParser("winner")("Winner: B\n</think>Both are good.").value is None
