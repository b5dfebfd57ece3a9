"""The judge: asks a question about each case k times and parses verdicts from the replies.

If a question is too long, it is skipped or the judged text is truncated, as set in the recipe; both
are counted. A case without a verdict has no score, and no default score is used.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic

from lockstep.core import keyed
from lockstep.core.errors import InputError
from lockstep.core.metrics import Mean, Metrics, Sum
from lockstep.judge.asking import ChatConversation, JudgeModel, ModelAnswer
from lockstep.judge.options import AskedSection
from lockstep.judge.templates import JudgeTemplate, format_conversation
from lockstep.judge.verdicts import (
    CAUSES,
    UNANSWERED,
    JudgeVerdict,
    V,
    VerdictParser,
)

CUT_OFF = " […]"
"""Marker at the end of a truncated text."""

_LEAST_KEPT = 0.5
"""Minimum share of a text to keep; a shorter one would not represent the text."""

_SHOWN = 80


class JudgeError(InputError):
    """Too few judgments have a verdict."""


@dataclass(frozen=True)
class JudgeCase:
    """A case to judge.

    Attributes:
        conversation: The `prompt` of the template, in its messages.
        texts: The other fields.
        key: Key of the random numbers, in addition to seed, role and judgment number; it identifies
            the case across runs, such as step, row and sample.
    """

    conversation: ChatConversation
    texts: Mapping[str, str]
    key: tuple[int | str, ...]


@dataclass(frozen=True)
class JudgeReply(Generic[V]):
    """A judge's reply and its verdict; None for a question that was skipped or not answered."""

    verdict: JudgeVerdict[V]
    answer: ModelAnswer | None = None


@dataclass(frozen=True)
class CaseJudgments(Generic[V]):
    """All judgments of one case.

    Attributes:
        judgments: Judgments in order of their numbers.
        shortened: True if the judge saw only the beginning of a text.
    """

    judgments: tuple[JudgeReply[V], ...]
    shortened: bool = False

    @property
    def values(self) -> list[V]:
        """All verdicts."""
        found: list[V] = []
        for reply in self.judgments:
            if reply.verdict.value is not None:
                found.append(reply.verdict.value)
        return found


def mean_score(judged: CaseJudgments[float]) -> float | None:
    """The mean of the verdicts; None if there is none."""
    if judged.values:
        return math.fsum(judged.values) / len(judged.values)
    return None


def score_variance(judged: CaseJudgments[float]) -> float | None:
    """The population variance of the verdicts; None for fewer than two."""
    mean = mean_score(judged)
    values = judged.values
    if mean is None or len(values) < 2:
        return None
    return sum((score - mean) ** 2 for score in values) / len(values)


@dataclass(frozen=True)
class LLMJudge(Generic[V]):
    """A judge of cases.

    Attributes:
        answering: The model or server to ask.
        template: Template of the question.
        parser: Parser of replies.
        judged_fields: The fields to truncate, to equal lengths, if a question is too long.
        options: Options of questions and replies.
        draws: Number of judgments per case.
        seed: Seed of the random numbers.
        role: Role that separates the random numbers of different kinds of judges.
        section: Section of the recipe with the limits, for messages.
    """

    answering: JudgeModel
    template: JudgeTemplate
    parser: VerdictParser[V]
    judged_fields: tuple[str, ...]
    options: AskedSection
    draws: int
    seed: int
    role: str
    section: str

    def __call__(self, cases: Sequence[JudgeCase]) -> list[CaseJudgments[V]]:
        """Judges each case; random numbers depend on its key, not on other cases.

        Raises:
            JudgeError: If more judgments than allowed have no verdict.
        """
        filled = list(map(self._escape_fields, cases))
        whole = list(map(self._build_conversation, filled))
        excesses = self.answering.count_excess_tokens(whole)
        questions: list[tuple[ChatConversation | None, bool]] = []
        conversations: list[ChatConversation] = []
        keys: list[int] = []
        for case, question, excess, texts in zip(cases, whole, excesses, filled, strict=True):
            shortened = False
            if excess:
                question, shortened = self._shorten_question(texts)
            questions.append((question, shortened))
            if question is None:
                continue
            for draw in range(self.draws):
                conversations.append(question)
                keys.append(keyed.hash_key(self.seed, self.role, *case.key, draw))
        answers = iter(self.answering.answer_conversations(conversations, keys))
        judged: list[CaseJudgments[V]] = []
        for question, shortened in questions:
            replies = tuple(self._parse_reply(question, answers) for _ in range(self.draws))
            judged.append(CaseJudgments(replies, shortened))
        self._require_verdicts(judged)
        return judged

    def are_within_limit(self, cases: Sequence[JudgeCase]) -> bool:
        """True if no question is too long or long ones are truncated."""
        whole = [self._build_conversation(self._escape_fields(case)) for case in cases]
        return self.options.truncates_responses or not any(
            self.answering.count_excess_tokens(whole)
        )

    def _escape_fields(self, case: JudgeCase) -> dict[str, str]:
        texts = {"prompt": format_conversation(case.conversation), **case.texts}
        return {name: self.answering.escape_controls(text) for name, text in texts.items()}

    def _build_conversation(self, texts: Mapping[str, str]) -> ChatConversation:
        prompt = self.options.system_prompt
        system = () if prompt is None else ({"role": "system", "content": prompt},)
        return (*system, {"role": "user", "content": self.template.fill_case(texts)})

    def _shorten_question(self, texts: Mapping[str, str]) -> tuple[ChatConversation | None, bool]:
        """Builds the question with as much of the judged texts as fits."""
        if not self.options.truncates_responses:
            return None, False
        longest = max(len(texts[name]) for name in self.judged_fields)

        def is_too_long(length: int) -> bool:
            question = self._build_conversation(self._cut_texts(texts, length))
            return self.answering.count_excess_tokens([question])[0] > 0

        fitting = bisect_left(range(1, longest + 1), True, key=is_too_long)
        if fitting < max(1, math.ceil(_LEAST_KEPT * longest)):
            return None, False
        return self._build_conversation(self._cut_texts(texts, fitting)), True

    def _cut_texts(self, texts: Mapping[str, str], length: int) -> dict[str, str]:
        cut = dict(texts)
        for name in self.judged_fields:
            if len(texts[name]) > length:
                cut[name] = texts[name][:length] + CUT_OFF
        return cut

    def _parse_reply(
        self, question: ChatConversation | None, answers: Iterator[ModelAnswer | None]
    ) -> JudgeReply[V]:
        """Parses the next reply if the question was asked."""
        if question is None:
            return JudgeReply(JudgeVerdict(None, "prompt_too_long"))
        answer = next(answers)
        if answer is None:
            return JudgeReply(JudgeVerdict(None, "unreachable"))
        if not (answer.finished or self.options.reads_unfinished):
            return JudgeReply(JudgeVerdict(None, "unfinished"), answer)
        return JudgeReply(self.parser(answer.text), answer)

    def _require_verdicts(self, judged: Sequence[CaseJudgments[V]]) -> None:
        replies = _list_replies(judged)
        causes = Counter(reply.verdict.cause for reply in replies)
        del causes[None]
        total = len(judged) * self.draws
        limit = self.options.max_no_verdict_rate
        if causes.total() <= limit * total:
            return
        counts = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
        unread = (reply.answer for reply in replies if reply.verdict.value is None)
        answer = next(filter(None, unread), None)
        example = ""
        if answer is not None:
            example = f"an unreadable reply ends in {answer.text[-_SHOWN:]!r}; "
        raise JudgeError(
            f"{causes.total()} of {total} judgments have no verdict ({counts}), above "
            f"{self.section}.max_no_verdict_rate={limit:g}; {example}check the template, "
            f"{self.section}.sampling.max_tokens and the judge, or raise the limit"
        )


def judge_metrics(judged: Sequence[CaseJudgments[V]]) -> Metrics:
    """Metrics of judgments: missing verdicts by cause, unreadable replies, truncated texts.

    `parse_failures` is the share of replies without a verdict, `no_verdict` the share of judgments
    without a verdict.
    """
    causes = Counter(reply.verdict.cause for reply in _list_replies(judged))
    total = causes.total()
    unanswered = sum(causes[cause] for cause in UNANSWERED)
    failed = total - causes[None] - unanswered
    return Metrics(
        no_verdict=Mean(failed + unanswered, total),
        parse_failures=Mean(failed, total - unanswered),
        truncated_judge_prompts=Mean(sum(one.shortened for one in judged), len(judged)),
        **{f"no_verdict_{cause}": Sum(causes[cause]) for cause in CAUSES},
    )


def _list_replies(judged: Sequence[CaseJudgments[V]]) -> list[JudgeReply[V]]:
    return list(chain.from_iterable(one.judgments for one in judged))
