"""New prompts, written by the policy after examples: self-instruct (Wang et al. 2022, arXiv 2212.10560).

Self-Rewarding makes each iteration's prompts this way (Yuan et al. 2024, §2.3); the words of the request are ours. The
new prompts depend only on the weights, the prompts of the data, and the keys of the random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from lockstep.core import keyed
from lockstep.core.errors import RunError
from lockstep.core.metrics import Metrics, Sum
from lockstep.data.prompts import Prompts
from lockstep.data.templates import fields
from lockstep.data.text_field import TextField
from lockstep.data.thoughts import drop_thought
from lockstep.judge.asking import Answer, Answering, Conversation
from lockstep.judge.new_prompt_options import NewPromptsSection
from lockstep.judge.templates import Template

_EXAMPLES = 8
_BLOCK = 1024
_LIST = "\n\n".join(f"Request {number}:\n{{example_{number}}}" for number in range(1, _EXAMPLES + 1))
WRITE = f"""\
Below are {_EXAMPLES} requests to an assistant. Different people have written them, and none has to do with another.

{_LIST}

Write one more request such as somebody else could send: about something else, complete in itself, and such that an
assistant can answer it in writing. Write the request alone: no number in front of it, and no answer behind it.

Request {_EXAMPLES + 1}:
"""

Outcome = Literal["made", "request_too_long", "unfinished", "empty", "too_long", "known", "repeated"]
"""Outcomes of an attempt: a prompt; no text, as the request was too long; or a text that was cut off, is empty, is
longer than a prompt may be, is a prompt of the data, or was written before in this iteration."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class TooFewPromptsError(RunError):
    """All attempts are used up, and prompts are missing."""


@dataclass(frozen=True)
class WrittenPrompts:
    """The new prompts of an iteration.

    Attributes:
        rows: Rows of the new prompts.
        outcomes: Counts of all attempts by outcome.
    """

    rows: list[dict[str, Any]]
    outcomes: Counter[Outcome]

    def metrics(self) -> Metrics:
        """Metrics of the attempts, by outcome."""
        by_outcome = {outcome: Sum(self.outcomes[outcome]) for outcome in OUTCOMES}
        return Metrics(attempts=Sum(self.outcomes.total()), **by_outcome)


def request_template(section: NewPromptsSection) -> Template:
    """The template of the request, with as many examples as it has fields for.

    Raises:
        ValueError: Its fields are not {example_1}, {example_2} and so on.
    """
    text = WRITE if section.template is None else section.template
    count = max(1, len(set(fields(text))))
    names = tuple(f"example_{number}" for number in range(1, count + 1))
    return Template(text, names, "new_prompts.template")


@dataclass(frozen=True)
class PromptWriter:
    """Writes new prompts with a model.

    Attributes:
        answering: The model that writes.
        template: The request, with fields for examples.
        prompts: Prompts of the data: examples, and texts that must not be repeated.
        field: Field of a row with its text.
        max_attempts: Greatest number of requests for each new prompt.
        seed: Seed of the random numbers.
    """

    answering: Answering
    template: Template
    prompts: Prompts
    field: TextField
    max_attempts: int
    seed: int

    def __call__(self, iteration: int, count: int) -> WrittenPrompts:
        """Writes `count` new prompts.

        Raises:
            TooFewPromptsError: The attempts did not give as many.
        """
        found: dict[int, str] = {}
        outcomes = Counter[Outcome]()
        limit = count * self.max_attempts
        while len(found) < count and outcomes.total() < limit:
            start = outcomes.total()
            for text, fault in self._attempts(iteration, range(start, min(start + count - len(found), limit))):
                outcome = fault or self._novelty(text, found)
                outcomes[outcome] += 1
                found |= {_mark(text): text} if outcome == "made" else {}
        if len(found) < count:
            causes = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common() if outcome != "made")
            raise TooFewPromptsError(
                f"iteration {iteration}: {limit} attempts gave {len(found)} new prompts of {count} ({causes}); look at "
                "new_prompts.template and new_prompts.sampling, or raise new_prompts.max_attempts"
            )
        return WrittenPrompts([self.field.row(text) for text in found.values()], outcomes)

    def _attempts(self, iteration: int, numbers: Sequence[int]) -> list[tuple[str, Outcome | None]]:
        """Makes attempts. Returns each text, and its fault, if it has one by itself."""
        requests = [self._request(iteration, number) for number in numbers]
        keys = [keyed.key(self.seed, "new prompts", iteration, number) for number in numbers]
        fitting = [not excess for excess in self.answering.excesses(requests)]
        asked = [pair for pair, fits in zip(zip(requests, keys, strict=True), fitting, strict=True) if fits]
        replies = iter(self.answering.answers([request for request, _ in asked], [key for _, key in asked]))
        answers = [next(replies) if fits else None for fits in fitting]
        written = ["" if answer is None else drop_thought(answer.text).strip() for answer in answers]
        texts = list(map(self.answering.escape, written))
        short = self.prompts.short_enough([self.field.row(text) for text in texts])
        return [(text, _fault(*one)) for text, one in zip(texts, zip(answers, texts, short, strict=True), strict=True)]

    def _request(self, iteration: int, number: int) -> Conversation:
        """Builds a request, with examples sampled for this attempt."""
        names = self.template.fields
        places = keyed.sample(len(self.prompts), len(names), self.seed, "examples", iteration, number)
        texts = [self.answering.escape(self.field.text(row)) for row in self.prompts.contents(places)]
        return ({"role": "user", "content": self.template.fill(dict(zip(names, texts, strict=True)))},)

    def _novelty(self, text: str, found: Mapping[int, str]) -> Outcome:
        mark = _mark(text)
        if mark in self._data_marks:
            return "known"
        return "repeated" if mark in found else "made"

    @cached_property
    def _data_marks(self) -> set[int]:
        """Hashes of the data's prompts."""
        blocks = (range(len(self.prompts))[start : start + _BLOCK] for start in range(0, len(self.prompts), _BLOCK))
        return {_mark(self.field.text(row)) for places in blocks for row in self.prompts.contents(places)}


def _fault(answer: Answer | None, text: str, short: bool) -> Outcome | None:
    if answer is None:
        return "request_too_long"
    if not answer.finished:
        return "unfinished"
    if not text:
        return "empty"
    return None if short else "too_long"


def _mark(text: str) -> int:
    """A hash that is the same for texts that differ in space and case only."""
    return keyed.key(" ".join(text.split()).casefold())
