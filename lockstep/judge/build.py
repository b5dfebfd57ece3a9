"""Builders of judges from options, and of their cases: answers without thoughts.

`prompt` is the text that a judged response continues, if known; it can open the thought.
"""

from __future__ import annotations

from lockstep.data.thoughts import drop_thought
from lockstep.judge.asking import ChatConversation, JudgeModel
from lockstep.judge.judge import JudgeCase, LLMJudge
from lockstep.judge.options import AskedSection, ComparisonSection, JudgeSection, MetaJudgeSection
from lockstep.judge.templates import (
    ADDITIVE,
    META,
    META_FIELDS,
    PAIR_FIELDS,
    PAIRWISE,
    SCORE_FIELDS,
    JudgeTemplate,
)
from lockstep.judge.verdicts import PairWinner, ScoreParser, WinnerParser


def score_judge(
    section: JudgeSection, answering: JudgeModel, seed: int, key: str = "judge"
) -> LLMJudge[float]:
    """A judge that scores responses (`response_case`); `key` is its section's, for messages.

    Raises:
        ValueError: The template does not have the required fields.
    """
    template = JudgeTemplate(
        ADDITIVE if section.template is None else section.template, SCORE_FIELDS, f"{key}.template"
    )
    parser = score_parser(section)
    draws = section.num_evals_to_average
    return LLMJudge(answering, template, parser, ("response",), section, draws, seed, "judge", key)


def score_parser(section: JudgeSection) -> ScoreParser:
    """The parser of scores that a recipe defines."""
    return ScoreParser(
        section.judge_score_low, section.judge_score_high, section.score_pattern, section.decimals
    )


def pair_judge(
    comparison: ComparisonSection, asked: AskedSection, answering: JudgeModel, seed: int
) -> LLMJudge[PairWinner]:
    """A judge that compares two responses (`pair_case`), with the settings in `asked`.

    Raises:
        ValueError: As `score_judge`.
    """
    template = JudgeTemplate(
        PAIRWISE if comparison.template is None else comparison.template,
        PAIR_FIELDS,
        "pairs.template",
    )
    parser = WinnerParser(comparison.winner_pattern)
    return LLMJudge(answering, template, parser, PAIR_FIELDS[1:], asked, 1, seed, "pairs", "judge")


def meta_judge(section: MetaJudgeSection, answering: JudgeModel, seed: int) -> LLMJudge[PairWinner]:
    """A judge that compares two judgments (`meta_case`).

    Raises:
        ValueError: As `score_judge`.
    """
    template = JudgeTemplate(
        META if section.template is None else section.template, META_FIELDS, "meta_judge.template"
    )
    parser = WinnerParser(section.winner_pattern)
    return LLMJudge(
        answering, template, parser, ("response",), section, 1, seed, "meta_judge", "meta_judge"
    )


def response_case(
    conversation: ChatConversation, response: str, key: tuple[int | str, ...], prompt: str = ""
) -> JudgeCase:
    """A response to score."""
    return JudgeCase(conversation, {"response": drop_thought(response, prompt)}, key)


def pair_case(
    conversation: ChatConversation, first: str, second: str, key: tuple[int | str, ...]
) -> JudgeCase:
    """Two responses to compare, A first."""
    return JudgeCase(
        conversation,
        dict(zip(PAIR_FIELDS[1:], map(drop_thought, (first, second)), strict=True)),
        key,
    )


def meta_case(
    conversation: ChatConversation,
    response: str,
    first: str,
    second: str,
    key: tuple[int | str, ...],
    prompt: str = "",
) -> JudgeCase:
    """Two judgments of a response to compare, A first, without thoughts and scores."""
    texts = drop_thought(response, prompt), first, second
    return JudgeCase(conversation, dict(zip(META_FIELDS[1:], texts, strict=True)), key)
