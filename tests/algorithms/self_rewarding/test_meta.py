"""Which judgments battle, who wins, and what is learned from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from lockstep.algorithms.self_rewarding.answers import RankedAnswers
from lockstep.algorithms.self_rewarding.meta import (
    JudgePair,
    MetaJudging,
    judge_batch,
    judge_pair_row,
    judge_pairs,
)
from lockstep.core.batch import Batch
from lockstep.core.types import Prompt
from lockstep.judge.asking import ChatConversation, ModelAnswer
from lockstep.judge.build import meta_judge
from lockstep.judge.judge import CaseJudgments, JudgeReply
from lockstep.judge.options import MetaJudgeSection
from lockstep.judge.verdicts import JudgeVerdict, ScoreParser
from lockstep.objectives.pairing import AnswerPair
from lockstep.rollouts.rollout import Rollouts

META_SECTION = MetaJudgeSection.model_validate(
    {"sampling": {"max_tokens": 200}, "max_prompt_tokens": 4000}
)
PARSER = ScoreParser(0, 5, "score", decimals=True)


class Referee:
    """Answers questions about two judgments; implements `Answering`."""

    def __init__(self, decide: Callable[[str, str], str]) -> None:
        self._decide, self.limit = decide, 10**6
        self.asked: list[str] = []

    def escape_controls(self, text: str) -> str:
        return text

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        return [max(0, len(str(one[0]["content"])) - self.limit) for one in conversations]

    def answer_conversations(
        self, conversations: Sequence[ChatConversation], keys: Sequence[int]
    ) -> list[ModelAnswer | None]:
        assert len(set(keys)) == len(keys)
        self.asked += [str(one[0]["content"]) for one in conversations]
        return [
            ModelAnswer(self._decide(*str(one[0]["content"]).split("|")[2:]), True)
            for one in conversations
        ]


def meta(decide: Callable[[str, str], str]) -> tuple[MetaJudging, Referee]:
    section = META_SECTION.model_copy(
        update={
            "template": "{prompt}|{response}|{judgement_a}|{judgement_b}",
            "max_no_verdict_rate": 1.0,
        }
    )
    referee = Referee(decide)
    return MetaJudging(meta_judge(section, referee, 0), section, PARSER.without_score, 1.0), referee


def alphabetical(first: str, second: str) -> str:
    """The reasons that come first in the alphabet are better."""
    return f"Winner: {'A' if first < second else 'B'}"


def judged(*said: tuple[str, float], finished: bool = True) -> CaseJudgments[float]:
    return CaseJudgments(
        tuple(
            JudgeReply(
                JudgeVerdict(score),
                ModelAnswer(
                    f"{reasons} Score: {score:g}", finished, (7, 8), tuple(range(len(reasons)))
                ),
            )
            for reasons, score in said
        )
    )


def answers(
    *every: CaseJudgments[float], group: int = 1, unfinished: Sequence[int] = ()
) -> RankedAnswers:
    """Each an answer of two tokens to a prompt of one."""
    count = len(every)
    truncated = torch.tensor([place in unfinished for place in range(count)])
    batch = Batch(
        torch.arange(3 * count),
        torch.full((count,), 3),
        {"mask": torch.tensor([False, True, True]).repeat(count)},
        {"truncated": truncated, "score": torch.zeros(count)},
    )
    prompts = [
        Prompt(f"rows:{place // group}", f"ask {place // group}", (1,), {})
        for place in range(count)
    ]
    pairs = [AnswerPair("tie")] * (count // group)
    return RankedAnswers(
        Rollouts(batch, prompts, [f"answer {place}" for place in range(count)]), every, pairs
    )


def named(pairs: Sequence[JudgePair]) -> list[tuple[str, str, str]]:
    return [(one.doubted.response, one.chosen.reasons, one.rejected.reasons) for one in pairs]


def test_best_and_worst_judgments_of_an_answer_form_a_judge_pair() -> None:
    settings, referee = meta(alphabetical)
    pairs, told, _ = judge_pairs(
        answers(judged(("b", 3.0), ("c", 4.0), ("a", 1.0))), 1, settings, 0
    )
    assert named(pairs) == [("answer 0", "a", "c")]
    shown = {tuple(question.split("|")) for question in referee.asked}
    assert shown == {
        ("ask 0", "answer 0", one, other) for one in "abc" for other in "abc" if one != other
    }
    figures = told.floats()
    assert (figures["first_wins"], figures["consistent"], figures["undecided"]) == (0.5, 1.0, 0.0)
    assert figures["elo_gap"] == pytest.approx(pairs[0].elo_gap)


def test_judge_pairs_come_from_answers_with_largest_score_spread() -> None:
    settings, referee = meta(alphabetical)
    mild, strong, sure = (
        judged(("a", 3.0), ("b", 4.0)),
        judged(("a", 0.0), ("b", 5.0)),
        judged(("a", 3.0), ("b", 3.0)),
    )
    pairs, _, _ = judge_pairs(answers(mild, sure, strong, sure, sure, sure), 1, settings, 0)
    assert [pair.doubted.response for pair in pairs] == ["answer 2"]
    # the mild one was looked at, too, in case the strong one gave none
    assert len(referee.asked) == 2 * 2
    pairs, _, _ = judge_pairs(answers(mild, strong, group=2), 9, settings, 0)
    assert [pair.doubted.response for pair in pairs] == ["answer 1"]  # one of each prompt


def test_judge_pairs_exclude_unfinished_answers_and_unfinished_or_unparsed_judgments() -> None:
    settings, _ = meta(alphabetical)
    one = judged(("a", 1.0), ("b", 4.0))
    assert judge_pairs(answers(one, unfinished=(0,)), 1, settings, 0)[0] == []
    assert (
        judge_pairs(answers(judged(("a", 1.0), ("b", 4.0), finished=False)), 1, settings, 0)[0]
        == []
    )
    silent = replace(
        one,
        judgments=(
            *one.judgments,
            JudgeReply[float](JudgeVerdict(None, "no_match"), ModelAnswer("z", True)),
        ),
    )
    assert named(judge_pairs(answers(silent), 1, settings, 0)[0]) == [("answer 0", "a", "b")]


@pytest.mark.parametrize(
    ("one", "decide"),
    [
        (
            judged(("a", 1.0), ("b", 4.0)),
            lambda first, second: "Winner: A",
        ),  # the place decides: nobody is better
        (judged(("a", 1.0), ("b", 4.0)), lambda first, second: "neither"),
        (judged(("a", 1.0), ("b", 4.0), ("c", 1.0)), alphabetical),  # best and worst say the same
        (judged(("a", 1.0), ("a", 4.0)), alphabetical),  # the same reasons
    ],
)
def test_undecided_or_equal_judgments_form_no_judge_pair(
    one: CaseJudgments[float], decide: Callable[[str, str], str]
) -> None:
    settings, _ = meta(decide)
    assert judge_pairs(answers(one), 1, settings, 0)[0] == []


def test_max_class_share_limits_chosen_judgments_per_score() -> None:
    settings, _ = meta(alphabetical)
    said = [judged(("a", score), ("b", 0.0)) for score in (5.0, 5.0, 5.0, 4.0)]
    pairs, _, _ = judge_pairs(answers(*said), 4, replace(settings, max_class_share=0.5), 0)
    assert sorted(pair.chosen.score for pair in pairs) == [4.0, 5.0]
    assert len(judge_pairs(answers(*said), 4, settings, 0)[0]) == 4


def test_judge_batch_keeps_sampled_prompt_and_judgment_tokens() -> None:
    settings, _ = meta(alphabetical)
    pairs, _, _ = judge_pairs(answers(judged(("aa", 1.0), ("bbb", 4.0))), 1, settings, 0)
    batch = judge_batch(pairs)
    assert [one.tolist() for one in batch.sequences()] == [[7, 8, 0, 1], [7, 8, 0, 1, 2]]
    assert [one.tolist() for one in batch.sequences("mask")] == [
        [False] * 2 + [True] * 2,
        [False] * 2 + [True] * 3,
    ]
    assert (batch["score"].tolist(), batch["judge_pair"].tolist(), batch.group_size) == (
        [1.0, 0.0],
        [True, True],
        2,
    )
    row = judge_pair_row(pairs[0], lambda ids: str(list(ids)))
    assert (row["status"], row["prompt"], row["chosen"], row["rejected_score"]) == (
        "judge_pair", "[7, 8]", "aa Score: 1", 4.0,
    )  # fmt: skip
    assert row["scores"] == [1.0, 4.0]
    assert math.isfinite(pairs[0].elo_gap)
