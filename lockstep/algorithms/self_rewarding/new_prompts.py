"""New prompts at the beginning of an iteration: written by the policy, kept in the run's folder, opened as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson

from lockstep.algorithms.rows import open_prompts
from lockstep.algorithms.self_rewarding.options import SelfRewardingRecipe
from lockstep.config import DataSection
from lockstep.core.errors import InputError
from lockstep.core.metrics import Metrics
from lockstep.data.files import FileGroup
from lockstep.data.prompts import Prompts, is_chat
from lockstep.data.text_field import TextField, text_field
from lockstep.judge.asking import Reader, SamplerAnswers
from lockstep.judge.new_prompt_options import NewPromptsSection
from lockstep.judge.new_prompts import PromptWriter, request_template
from lockstep.judge.templates import Template
from lockstep.models.source import ModelSource
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.system.whole_files import write_whole

FOLDER = "prompts"
"""Folder, inside the run's, of the new prompts, one file for each iteration."""


@dataclass
class NewPrompts:
    """New prompts by iteration; the current iteration's are cached, and a resumed run writes them again.

    Attributes:
        writer: Writes them.
        engine: Sampler session of the reference, which is the policy of the iteration's beginning.
        count: Prompts of an iteration.
        folder: Folder of their files.
        data: The section `data`, by which rows become prompts.
        source: Tokenizer and template of the model.
    """

    writer: PromptWriter
    engine: SamplerSession
    count: int
    folder: Path
    data: DataSection
    source: ModelSource
    _open: dict[int, tuple[Prompts, Metrics]] = field(default_factory=dict, init=False)

    def __call__(self, iteration: int, version: int) -> tuple[Prompts, Metrics]:
        """Returns the prompts of an iteration, and metrics of their generation.

        Args:
            iteration: Counted from 0.
            version: Version of the weights at its beginning.

        Raises:
            TooFewPromptsError: The policy did not write enough of them.
        """
        if iteration not in self._open:
            self._open = {iteration: self._write_prompts(iteration, version)}
        return self._open[iteration]

    def _write_prompts(self, iteration: int, version: int) -> tuple[Prompts, Metrics]:
        with self.engine.at(version):
            written = self.writer(iteration, self.count)
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"iteration_{iteration:03d}.jsonl"
        write_whole(path, (orjson.dumps(row) + b"\n" for row in written.rows))
        prompts = open_prompts(FileGroup((path,)), _without_answers(self.data), self.source.tokenizer)
        return prompts, written.metrics().with_prefix("prompts")


def new_prompts(
    recipe: SelfRewardingRecipe, prompts: Prompts, count: int, engine: SamplerSession, source: ModelSource, folder: Path
) -> NewPrompts | None:
    """Opens the writer of new prompts, if the recipe has one.

    Args:
        recipe: Its section `new_prompts`.
        prompts: Prompts of the data, which serve as examples.
        count: Prompts of an iteration.
        engine: Sampler session of the reference policy.
        source: Tokenizer and template of the model.
        folder: Folder of the run.

    Raises:
        ValueError: As from `request_of`.
    """
    section = recipe.new_prompts
    if section is None:
        return None
    template, text = request_of(recipe, section, prompts, source)
    args = recipe.data.template_args
    reader = Reader(source.tokenizer, is_chat(recipe.data), section.max_prompt_tokens, "data", args)
    answering = SamplerAnswers(engine.generate, reader, source.sampling(section.sampling))
    writer = PromptWriter(answering, template, prompts, text, section.max_attempts, recipe.seed)
    return NewPrompts(writer, engine, count, folder / FOLDER, recipe.data, source)


def request_of(
    recipe: SelfRewardingRecipe, section: NewPromptsSection, prompts: Prompts, source: ModelSource
) -> tuple[Template, TextField]:
    """The template of requests for new prompts, and the field of a row that the reply fills.

    Raises:
        ValueError: Template or data cannot be used for that, or requests do not fit the model.
    """
    tokens = section.max_prompt_tokens + section.sampling.max_tokens
    source.require_room("new_prompts.max_prompt_tokens + new_prompts.sampling.max_tokens", tokens)
    template = request_template(section)
    if len(prompts) < len(template.fields):
        raise InputError(
            f"new_prompts.template shows {len(template.fields)} prompts, but the data has {len(prompts)}; bring more, "
            "or write a template that shows fewer"
        )
    return template, text_field(recipe.data)


def _without_answers(data: DataSection) -> DataSection:
    """The same section for rows that hold nothing but a prompt."""
    return data.model_copy(update={"answer": ""})
