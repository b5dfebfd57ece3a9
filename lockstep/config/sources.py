"""Options of a run's sources: the initial weights, the rows, the rewards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SerializeAsAny,
    WrapValidator,
)

from lockstep.config.hub_name import ROWS, ModelPath
from lockstep.config.section import LocalPath, Section, rule
from lockstep.config.task import Task, validate_as_named


class Scratch(Section):
    """A new model with random weights.

    It is a `transformers` configuration and a tokenizer built from the training text.
    """

    config: dict[str, Any] = Field(
        description="fields of a transformers config, including `model_type`"
    )
    tokenizer: Literal["words"] = Field(
        default="words",
        description=(
            "word-level tokenizer: one token per word, number, symbol and newline of the data"
        ),
    )


class ModelSection(Section):
    """The source of the initial weights: exactly one of three."""

    path: ModelPath | None = Field(
        default=None,
        description="a Hugging Face folder on this machine, or hf:owner/name on the hub",
    )
    from_recipe: LocalPath | None = Field(
        default=None,
        description=(
            "recipe to train first, with the same seed; a file path is relative to the recipe's "
            "folder"
        ),
    )
    scratch: Scratch | None = Field(default=None, description="build a new model")

    @rule
    def _one_source(self) -> None:
        if sum(source is not None for source in (self.path, self.from_recipe, self.scratch)) != 1:
            raise ValueError(
                "set exactly one of path, from_recipe and scratch (such as model.path=FOLDER)"
            )


class ModelFolder(Section):
    """A model that is used but not trained."""

    path: ModelPath = Field(
        description=(
            "a Hugging Face folder on this machine, hf:owner/name on the hub, or the "
            "folder of a finished run"
        )
    )


def _read_template(value: Any) -> Any:
    """A template; `field`, and YAML's reading of an unquoted `{field}`, stand for `"{field}"`."""
    if isinstance(value, dict) and list(value.values()) == [None]:
        [value] = value
    if isinstance(value, str) and _FIELD.fullmatch(value):
        return f"{{{value}}}"
    return value


_FIELD = re.compile(r"[A-Za-z_][\w.]*")
Template = Annotated[str, BeforeValidator(_read_template)]
"""Text with `{field}` placeholders that a row fills, or the name of one field."""

EmptyOrTemplate = Annotated[Template, BeforeValidator(lambda value: value or "")]
"""A template; null stands for empty text."""

DataPaths = Annotated[str | Annotated[tuple[str, ...], Field(min_length=1)], ROWS]


TemplateArgs = Mapping[str, bool | int | float | str | list[str]]
"""Arguments of a chat template, by name."""


class PromptSection(Section):
    """Options that turn rows of data files into prompts.

    `{field}` in a template stands for a field of the row.
    """

    prompt: EmptyOrTemplate = Field(
        default="{question}",
        description=(
            "template of the prompt, or of the user message if `chat` is true; unset: told by the "
            "columns"
        ),
    )
    messages: str | None = Field(
        default=None,
        description=(
            "instead of `prompt`: field with a list of {role, content} for the "
            "tokenizer's chat template; a final assistant message is the answer and not "
            "part of the prompt"
        ),
    )
    chat: bool = Field(
        default=False, description="render the prompt with the tokenizer's chat template"
    )
    system_prompt: str | None = Field(default=None, description="system message; requires `chat`")
    template_args: TemplateArgs = Field(
        default={}, description="arguments of the chat template, such as {enable_thinking: false}"
    )
    max_prompt_tokens: PositiveInt = Field(
        description=("maximum prompt tokens; longer prompts are over-long")
    )
    overlong_prompts: Literal["error", "skip"] = Field(
        default="error", description="raise an error for over-long prompts, or skip and count them"
    )
    bad_rows: Literal["error", "skip"] = Field(
        default="error",
        description=(
            "raise an error for rows that are not JSON objects or lack a field, or skip "
            "and count them"
        ),
    )

    _tools: tuple[Mapping[str, Any], ...] = PrivateAttr(default=())

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Self:
        """The same options; the chat template also receives the JSON schemas of these tools."""
        copy = self.model_copy()
        copy._tools = tuple(tools)
        return copy

    @property
    def template_values(self) -> dict[str, Any]:
        """All arguments of the chat template."""
        return {**self.template_args, **({"tools": list(self._tools)} if self._tools else {})}

    @property
    def prompt_templates(self) -> dict[str, str]:
        """The templates whose fields a row needs for its prompt, by option."""
        if self.messages is None:
            return {"data.prompt": self.prompt}
        return {}

    def as_data(
        self, rows: DataPaths, answer: str, max_validation_samples: int | None = None
    ) -> DataSection:
        """The same prompts from the files `rows`, in that order."""
        options = {
            **dict(self),
            "train": rows,
            "validation": None,
            "shuffle": False,
            "answer": answer,
            "max_validation_samples": max_validation_samples,
        }
        return DataSection(
            **{name: value for name, value in options.items() if name in DataSection.model_fields}
        )

    @rule
    def _one_way_to_ask(self) -> None:
        if self.messages is not None and self.prompt != type(self).model_fields["prompt"].default:
            raise ValueError("set only one of prompt and messages; messages need no template")
        if self.messages is not None and (self.chat or self.system_prompt is not None):
            raise ValueError(
                "chat and system_prompt require prompt; messages always use the chat template "
                "unchanged"
            )
        if self.system_prompt is not None and not self.chat:
            raise ValueError("system_prompt needs chat: true")
        if self.template_args and not self.chat and self.messages is None:
            raise ValueError("template_args require a chat template; set chat: true, or messages")


class QuestionSection(PromptSection):
    """Prompts with a correct answer, and the number of them to validate on."""

    answer: EmptyOrTemplate = Field(
        default="{answer}",
        description="template of the reference answer passed to the reward; null: empty",
    )
    max_validation_samples: PositiveInt | None = Field(
        default=None, description="maximum number of validation rows"
    )


class DataSection(QuestionSection):
    """The rows that a run trains and validates on."""

    train: DataPaths | None = Field(
        default=None,
        description="training file, or a list of files: JSONL (also .gz), a JSON list, Parquet",
    )
    validation: DataPaths | Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description=(
            "validation file, or a list of files, or a share of the training rows to hold out"
        ),
    )
    weights: tuple[PositiveFloat, ...] | None = Field(
        default=None,
        description="relative sampling weight of each `train` file; null: number of rows",
    )
    task: SerializeAsAny[Annotated[Task, WrapValidator(validate_as_named)]] | None = Field(
        default=None,
        description="generate rows by the task `name` instead of reading them",
    )
    completion: Template | None = Field(
        default=None,
        description=(
            "template of the SFT completion, or a single field with a list of one "
            "assistant message; null: {answer}, or with `messages` the final assistant "
            "message"
        ),
    )
    shuffle: bool = Field(default=True, description="shuffle each epoch, keyed by the seed")

    @property
    def has_validation(self) -> bool:
        """True if rows are held out for validation."""
        return self.validation is not None or self.task is not None

    @property
    def completion_templates(self) -> dict[str, str]:
        """The templates whose fields a row needs for its completion; empty with messages."""
        if self.completion is None and self.messages is None:
            completion = "{answer}"
        else:
            completion = self.completion
        if completion is None:
            return {}
        return {"data.completion": completion}

    @rule
    def _one_source(self) -> None:
        if (self.train is None) == (self.task is None):
            raise ValueError(
                "set exactly one of train (a file of rows) and task (which generates them)"
            )
        if self.task is not None and self.validation is not None:
            raise ValueError(
                "validation cannot be set with task, which generates its own validation rows"
            )
        if self.weights is not None and (
            isinstance(self.train, str | None) or len(self.weights) != len(self.train)
        ):
            raise ValueError("weights requires a list of files in train and one number per file")
