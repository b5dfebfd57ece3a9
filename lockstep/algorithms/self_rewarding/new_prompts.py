"""Self-instruct (Wang et al. 2022, arXiv 2212.10560): the policy writes new prompts.

Self-Rewarding makes each iteration's prompts from examples this way (Yuan et al. 2024, §2.3); the
wording of the request is ours. The new prompts depend only on the weights, the data's prompts and
the random keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from lockstep.algorithms.rows import open_prompts
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.core import keyed
from lockstep.core.errors import InputError, RunError
from lockstep.core.metrics import Metrics, Sum
from lockstep.data.files import FileGroup
from lockstep.data.prompts import PromptRows, is_chat
from lockstep.data.templates import list_fields
from lockstep.data.text_field import TextField, text_field
from lockstep.data.thoughts import drop_thought
from lockstep.judge.asking import (
    ChatConversation,
    ConversationEncoder,
    JudgeModel,
    ModelAnswer,
    SamplerAnswers,
)
from lockstep.judge.templates import JudgeTemplate
from lockstep.models.source import ModelSource
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.system.whole_files import write_whole

_EXAMPLES = 8
_BLOCK = 1024
_LIST = "\n\n".join(
    f"Request {number}:\n{{example_{number}}}" for number in range(1, _EXAMPLES + 1)
)
WRITE = f"""\
Below are {_EXAMPLES} requests to an assistant. Different people have written them, and none has to do with another.

{_LIST}

Write one more request such as somebody else could send: about something else, complete in itself, and such that an
assistant can answer it in writing. Write the request alone: no number in front of it, and no answer behind it.

Request {_EXAMPLES + 1}:
"""

PromptOutcome = Literal[
    "made", "request_too_long", "unfinished", "empty", "too_long", "known", "repeated"
]
"""Outcomes of an attempt, in order.

A new prompt; a request too long to send; or a text that was truncated, is empty, exceeds the prompt
limit, is a prompt of the data, or was already written in this iteration.
"""


class TooFewPromptsError(RunError):
    """All attempts were used up before there were enough new prompts."""


@dataclass(frozen=True)
class PromptWriter:
    """Writes new prompts with a model.

    Attributes:
        answering: The model that writes.
        template: The request, with fields for examples.
        prompts: The data's prompts, as examples and as texts that must not be repeated.
        field: Field of a row with its text.
        max_attempts: Maximum number of requests per new prompt.
        seed: Seed of the random numbers.
    """

    answering: JudgeModel
    template: JudgeTemplate
    prompts: PromptRows
    field: TextField
    max_attempts: int
    seed: int

    def __call__(self, iteration: int, count: int) -> tuple[list[dict[str, Any]], Metrics]:
        """Writes `count` new prompts; returns their rows and the number of attempts by outcome.

        Raises:
            TooFewPromptsError: The attempts gave fewer prompts.
        """
        found: dict[int, str] = {}
        outcomes = Counter[PromptOutcome]()
        limit = count * self.max_attempts
        while len(found) < count and outcomes.total() < limit:
            start = outcomes.total()
            attempts = range(start, min(start + count - len(found), limit))
            requests = [self._build_request(iteration, number) for number in attempts]
            excesses = self.answering.count_excess_tokens(requests)
            fitting: list[ChatConversation] = []
            keys: list[int] = []
            for number, request, excess in zip(attempts, requests, excesses, strict=True):
                if not excess:
                    fitting.append(request)
                    keys.append(keyed.hash_key(self.seed, "new prompts", iteration, number))
            answers = self.answering.answer_conversations(fitting, keys)
            outcomes["request_too_long"] += len(attempts) - len(answers)
            for answer in answers:
                if answer is None:
                    text = ""
                else:
                    text = self.answering.escape_controls(drop_thought(answer.text).strip())
                outcome = self._classify_outcome(answer, text, found)
                outcomes[outcome] += 1
                if outcome == "made":
                    found[_hash_text(text)] = text
        if len(found) < count:
            causes = ", ".join(
                f"{number} {one}"
                for one, number in outcomes.most_common()
                if number and one != "made"
            )
            raise TooFewPromptsError(
                f"iteration {iteration}: {limit} attempts gave only {len(found)} of {count} new "
                f"prompts ({causes}); check new_prompts.template and new_prompts.sampling, or "
                "raise new_prompts.max_attempts"
            )
        counts = {outcome: Sum(outcomes[outcome]) for outcome in get_args(PromptOutcome)}
        return list(map(self.field.build_row, found.values())), Metrics(
            attempts=Sum(outcomes.total()), **counts
        )

    def _build_request(self, iteration: int, number: int) -> ChatConversation:
        """Builds a request, with examples sampled for this attempt."""
        names = self.template.fields
        drawn = keyed.draw_sample(
            len(self.prompts), len(names), self.seed, "examples", iteration, number
        )
        texts: list[str] = []
        for row in self.prompts.read_contents(drawn):
            texts.append(self.answering.escape_controls(self.field.read_text(row)))
        content = self.template.fill_case(dict(zip(names, texts, strict=True)))
        return ({"role": "user", "content": content},)

    def _classify_outcome(
        self, answer: ModelAnswer | None, text: str, found: Mapping[int, str]
    ) -> PromptOutcome:
        if answer is None or not answer.finished:
            return "unfinished"
        if not text:
            return "empty"
        if not self.prompts.short_enough([self.field.build_row(text)])[0]:
            return "too_long"
        if _hash_text(text) in self._data_marks:
            return "known"
        if _hash_text(text) in found:
            return "repeated"
        return "made"

    @cached_property
    def _data_marks(self) -> set[int]:
        """Hashes of the data's prompts."""
        marks: set[int] = set()
        for start in range(0, len(self.prompts), _BLOCK):
            indices = range(len(self.prompts))[start : start + _BLOCK]
            rows = self.prompts.read_contents(indices)
            marks.update(_hash_text(self.field.read_text(row)) for row in rows)
        return marks


def _hash_text(text: str) -> int:
    """A hash that ignores white space and case."""
    return keyed.hash_key(" ".join(text.split()).casefold())


NewPrompts = Callable[[int, int], tuple[PromptRows, Metrics]]
"""Prompts and metrics of an iteration, by its number and the version of its weights."""


def open_new_prompts(
    recipe: SelfRewardingRecipe,
    prompts: PromptRows,
    count: int,
    engine: SamplerSession,
    source: ModelSource,
    folder: Path,
) -> NewPrompts | None:
    """Opens the writer of new prompts, if set; the current iteration's prompts are cached.

    Args:
        recipe: Recipe with the section `new_prompts`.
        prompts: The data's prompts, used as examples.
        count: Number of prompts per iteration.
        engine: Sampler session of the reference, the policy at the start of the iteration.
        source: Tokenizer and template of the model.
        folder: Folder of the new prompts, one file per iteration.

    Raises:
        InputError: The template or the data is unsuitable, or requests do not fit the model.
    """
    section = recipe.new_prompts
    data = recipe.data
    if section is None:
        return None
    tokens = section.max_prompt_tokens + section.sampling.max_tokens
    source.require_room({"new_prompts.max_prompt_tokens + new_prompts.sampling.max_tokens": tokens})
    text = WRITE if section.template is None else section.template
    shown = max(1, len(set(list_fields(text))))  # {example_1}, {example_2} and so on
    fields = tuple(f"example_{number}" for number in range(1, shown + 1))
    template = JudgeTemplate(text, fields, "new_prompts.template")
    if len(prompts) < shown:
        raise InputError(
            f"new_prompts.template shows {shown} prompts, but the data has {len(prompts)}; add "
            "prompts, or use a template with fewer examples"
        )
    reader = ConversationEncoder(
        source.tokenizer, is_chat(data), section.max_prompt_tokens, "data", data.template_args
    )
    answering = SamplerAnswers(engine.generate, reader, source.sampling(section.sampling))
    writer = PromptWriter(
        answering, template, prompts, text_field(data), section.max_attempts, recipe.seed
    )
    without_answers = data.model_copy(update={"answer": ""})

    @lru_cache(maxsize=1)
    def write_new_prompts(iteration: int, version: int) -> tuple[PromptRows, Metrics]:
        with engine.at(version):
            rows, metrics = writer(iteration, count)
        folder.mkdir(exist_ok=True)
        path = folder / f"iteration_{iteration:03d}.jsonl"
        write_whole(path, (orjson.dumps(row) + b"\n" for row in rows))
        return open_prompts(
            FileGroup((path,)), without_answers, source.tokenizer
        ), metrics.with_prefix("prompts")

    return write_new_prompts
