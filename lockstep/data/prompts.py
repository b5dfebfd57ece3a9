"""Prompts from rows: templates filled and tokenized.

Stateless: reading a row twice gives the same prompt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from transformers import PreTrainedTokenizerBase

from lockstep.config import DataSection, PromptSection
from lockstep.core.errors import InputError, first_line
from lockstep.core.types import Prompt
from lockstep.data import messages
from lockstep.data.limits import tokenize_in_time
from lockstep.data.messages import ChatMessage
from lockstep.data.rows import DataError, DataRow, FileRows
from lockstep.data.selection import ANY_ROW, RowRequirements, RowRule, RowSelection
from lockstep.data.templates import fill_template, find_askers, find_field_fault, has_fields
from lockstep.system.printable import print_note

T = TypeVar("T")

_PANIC = "PanicException"
"""Name of the class of a Rust panic, which is not an Exception and cannot be imported."""

_MOST_CHARACTERS = 10_000_000
"""Longer texts would take a tokenizer minutes and gigabytes, and would be too long anyway."""


def prompts_of(
    rows: FileRows,
    numbers: Sequence[int],
    contents: Sequence[DataRow],
    tokenizer: PreTrainedTokenizerBase,
    data: DataSection,
    may_be_empty: bool = False,
) -> list[Prompt]:
    """Renders and tokenizes rows; the same rows always give the same prompts.

    A plain prompt gets the special tokens that the tokenizer adds to text; a chat template writes
    its own.
    """
    prompts = _build_prompts(
        [(rows.row_id(i), rows.name_row(i)) for i in numbers], contents, tokenizer, data
    )
    for i, prompt in zip(numbers, prompts, strict=True):
        if prompt.text.strip() and not prompt.tokens:
            raise DataError(
                f"{rows.name_row(i)}: the tokenizer in {tokenizer.name_or_path} turns its prompt "
                f"{prompt.text[:40]!r} into no tokens; copy the tokenizer's files again"
            )
        if not prompt.tokens and not may_be_empty:
            raise DataError(
                f"{rows.name_row(i)}: its prompt is empty; correct the row, or remove it"
            )
    return prompts


def _build_prompts(
    names: Sequence[tuple[str, str]],
    contents: Sequence[DataRow],
    tokenizer: PreTrainedTokenizerBase,
    data: DataSection,
) -> list[Prompt]:
    """Renders and tokenizes rows, given with their ids and their names for messages."""
    talks: list[tuple[ChatMessage, ...] | None] = []
    texts: list[str] = []
    wheres: list[str] = []
    for (_, where), row in zip(names, contents, strict=True):
        if is_chat(data):
            talk = build_conversation(row, where, data)
            text = _render_prompt(talk, where, tokenizer, values_of(row, data))
        else:
            talk = None
            text = fill_template(data.prompt, row, where)
        talks.append(talk)
        texts.append(text)
        wheres.append(where)
    tokens = token_ids(tokenizer, texts, add_special_tokens=not is_chat(data), names=wheres)
    return [
        Prompt(name, text, tuple(ids), row, talk)
        for (name, _), text, ids, row, talk in zip(
            names, texts, tokens, contents, talks, strict=True
        )
    ]


def fault_of(
    tokenizer: PreTrainedTokenizerBase, data: DataSection
) -> Callable[[DataRow], str | None]:
    """Returns a function that finds errors in the messages of a row with all fields.

    Raises:
        ValueError: A chat template is required and missing.
    """
    if is_chat(data) and tokenizer.chat_template is None:
        raise InputError(
            "data.chat and data.messages require a chat template, but the model's tokenizer has "
            "none; use a model with one, or write the full prompt in data.prompt"
        )
    if is_chat(data):
        messages.require_template(tokenizer, data.template_args)
    else:
        ids = tokenizer("a", add_special_tokens=True)["input_ids"]
        if ids and ids[-1] == tokenizer.eos_token_id:  # no answer could follow a prompt
            raise InputError(
                f"the tokenizer in {tokenizer.name_or_path} appends its end-of-sequence token "
                f"{tokenizer.eos_token} to every text, so every prompt would already be ended; set "
                "add_eos_token: false in tokenizer_config.json, or remove it from the "
                "post_processor in tokenizer.json"
            )
    field = data.messages
    if field is None:
        return lambda row: messages.text_fault(row, data.prompt, "data.prompt")
    return lambda row: messages.find_messages_fault(row, field, tokenizer, values_of(row, data))


def is_chat(data: PromptSection) -> bool:
    """True if prompts go through the tokenizer's chat template."""
    return data.chat or data.messages is not None


def values_of(row: DataRow, data: DataSection) -> dict[str, Any]:
    """All chat template arguments for a row: the recipe's, and the row's tools, if any."""
    tools = messages.read_tools(row)
    return {**({} if tools is None else {"tools": tools}), **data.template_values}


def note_unread_tools(
    rows: Sequence[DataRow], tokenizer: PreTrainedTokenizerBase, data: DataSection
) -> None:
    """Prints a note if the prompt of the first row with tools does not show them."""
    row = next((row for row in rows if row.get("tools")), None)
    if row is None or not is_chat(data) or "tools" in data.template_values:
        return
    if messages.read_tools(row) is None:
        print_note(
            "the field 'tools' of the rows is not a list of JSON schemas, so the chat template "
            "does not receive it"
        )
        return
    talk = build_conversation(row, "row", data)
    values = values_of(row, data)
    if messages.render_prompt(talk, tokenizer, values) == messages.render_prompt(
        talk, tokenizer, data.template_values
    ):
        print_note(
            f"the chat template of {tokenizer.name_or_path} does not render the tools of the "
            "rows, so the model does not see them"
        )


def build_conversation(row: DataRow, where: str, data: DataSection) -> tuple[ChatMessage, ...]:
    """The conversation of a row: its own, or built from the templates."""
    if data.messages is not None:
        return messages.read_question(row, data.messages)
    if data.system_prompt is None:
        system = ()
    else:
        system = ({"role": "system", "content": data.system_prompt},)
    return (*system, {"role": "user", "content": fill_template(data.prompt, row, where)})


def _render_prompt(
    talk: Sequence[ChatMessage],
    where: str,
    tokenizer: PreTrainedTokenizerBase,
    args: Mapping[str, Any],
) -> str:
    try:
        return messages.render_prompt(talk, tokenizer, args)
    except messages.ChatTemplateError as error:
        raise DataError(
            f"{where}: the tokenizer's chat template rejects its prompt ({error}); change "
            "data.system_prompt or data.prompt, or use a model with a different template"
        ) from error


def token_ids(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    add_special_tokens: bool,
    names: Sequence[str] = (),
) -> list[list[int]]:
    """Tokenizes texts in one call, without padding.

    Raises:
        DataError: A text is too long, or tokenizing it fails or takes too long. The message begins
            with the text's entry in `names`, if given.
    """
    if not texts:  # tokenizers reject an empty list
        return []
    for index, text in enumerate(texts):
        if len(text) > _MOST_CHARACTERS:
            size = f"{len(text):,} characters, more than the limit of {_MOST_CHARACTERS:,}"
            raise DataError(
                f"{_prefix_name(names, index)}its text has {size}; shorten the row, or remove it"
            )
    # verbose=False: Lockstep reports over-long rows itself, with their place in the file.
    options: dict[str, Any] = {
        "add_special_tokens": add_special_tokens,
        "verbose": False,
        "return_attention_mask": False,
    }
    encoded, failure = _try_tokenizing(lambda: tokenizer(list(texts), **options), texts)
    if failure is not None:
        index, failure = _find_failure(tokenizer, texts, failure)
        raise DataError(
            f"{_prefix_name(names, index)}the tokenizer of {tokenizer.name_or_path} fails on the "
            "text "
            f"starting with {texts[index][:40]!r} ({failure}); use a different tokenizer, or "
            "remove the row"
        )
    opening = [tokenizer.bos_token_id] * 2
    if not add_special_tokens:
        return encoded["input_ids"]
    # A text may begin with the opening token itself.
    return [ids[1:] if ids[:2] == opening else ids for ids in encoded["input_ids"]]


def _prefix_name(names: Sequence[str], index: int) -> str:
    if names:
        return f"{names[index]}: "
    return ""


def _try_tokenizing(tokenize: Callable[[], Any], texts: Sequence[str]) -> tuple[Any, str | None]:
    """Calls a function that tokenizes texts; returns its result and its error, one of them None."""
    try:
        return tokenize_in_time(tokenize, sum(map(len, texts))), None
    except BaseException as error:  # a panic in the tokenizer's Rust code is not an Exception
        if not isinstance(error, TimeoutError) and type(error).__name__ != _PANIC:
            raise
        return None, first_line(error)


def _find_failure(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], failure: str
) -> tuple[int, str]:
    """Index of the text on which a tokenizer fails, and the error.

    If each text works alone, it is the longest one.
    """
    # One text at a time needs none of the library's threads, which may still be busy with the call
    # that failed.
    encode = getattr(tokenizer, "backend_tokenizer", tokenizer).encode
    for index, text in enumerate(texts):
        _, own = _try_tokenizing(partial(encode, text), [text])
        if own is not None:
            return index, own
    return max(range(len(texts)), key=lambda index: len(texts[index])), failure


def too_long(prompt: Prompt, max_prompt_tokens: int) -> str | None:
    """Returns an error if a prompt is too long; else None."""
    length = len(prompt.tokens)
    if length <= max_prompt_tokens:
        return None
    return f"the prompt has {length} tokens, more than data.max_prompt_tokens={max_prompt_tokens}"


class EncodedRows(ABC, Generic[T]):
    """Rows of a data file that a run uses, read and tokenized on demand.

    Args:
        rows: The data.
        tokenizer: The model's tokenizer.
        data: Templates, limits, and whether to shuffle.
        templates: Templates, by option, whose fields a row must have.
        rule: Further requirements on a row.
        key: Everything else that decides which rows are used.

    Attributes:
        selection: Their numbers, in the order of the data.

    Raises:
        DataError: A row lacks a template's field, breaks the rule or is over-long, and the policy
            is error.
        ValueError: A template is malformed, or a chat template is required and missing.
    """

    def __init__(
        self,
        rows: FileRows,
        tokenizer: PreTrainedTokenizerBase,
        data: DataSection,
        templates: Mapping[str, str],
        rule: RowRule,
        *key: object,
    ) -> None:
        self._tokenizer = tokenizer
        self._data = data
        self._rule = rule
        self._prompt_fault = fault_of(tokenizer, data)
        needs = RowRequirements(
            templates,
            self._find_row_fault,
            partial(self._find_length_faults, rows),
            (type(self).__name__, rule.key, *key),
        )
        self.selection = RowSelection(rows, tokenizer, data, needs)
        note_unread_tools(self.selection.read_first(), tokenizer, data)

    def __len__(self) -> int:
        return len(self.selection)

    def __getitem__(self, i: int) -> T:
        return self._read_rows(self.selection.row_numbers([i]))[0]

    def read_at(self, position: int, count: int, seed: int) -> list[T]:
        """The rows at `position` … `position + count − 1` of a run; see `data.order`."""
        return self._read_rows(self.selection.numbers_at(position, count, seed))

    def read_first(self, limit: int | None = None) -> list[T]:
        """The rows in file order, at most the first `limit`."""
        return self._read_rows(self.selection.first_numbers(limit))

    @abstractmethod
    def _encode_rows(
        self, rows: FileRows, numbers: Sequence[int], contents: Sequence[DataRow]
    ) -> list[T]:
        """The rows with these numbers, rendered and tokenized."""

    @abstractmethod
    def _find_row_fault(self, row: DataRow) -> str | None:
        """Returns the error in a row that has the templates' fields; None if valid."""

    @abstractmethod
    def _find_length_fault(self, item: T) -> str | None:
        """Returns an error if a row has a bad length; else None."""

    def _find_length_faults(
        self, rows: FileRows, numbers: Sequence[int], contents: Sequence[DataRow]
    ) -> list[str | None]:
        return list(map(self._find_length_fault, self._encode_rows(rows, numbers, contents)))

    def _read_rows(self, numbers: Sequence[int]) -> list[T]:
        rows = self.selection.rows
        return self._encode_rows(rows, numbers, rows.read_rows(numbers))


class PromptRows(EncodedRows[Prompt]):
    """The prompts of a data file; arguments and errors: `EncodedRows`."""

    def __init__(
        self,
        rows: FileRows,
        tokenizer: PreTrainedTokenizerBase,
        data: DataSection,
        rule: RowRule = ANY_ROW,
    ) -> None:
        super().__init__(rows, tokenizer, data, data.prompt_templates, rule)

    def read_contents(self, places: Sequence[int]) -> list[DataRow]:
        """The raw rows at these places in file order."""
        return list(self.selection.rows.read_rows(self.selection.row_numbers(places)))

    def short_enough(self, contents: Sequence[DataRow]) -> list[bool]:
        """True for each new row whose prompt is within the length limit."""
        prompts = _build_prompts(
            [("new", "a new row")] * len(contents), contents, self._tokenizer, self._data
        )
        return [too_long(prompt, self._data.max_prompt_tokens) is None for prompt in prompts]

    def answer(self, prompt: Prompt) -> str:
        """The right answer to a prompt, as `data.answer` renders it; empty if its row has none."""
        template = self._data.answer
        if has_fields(prompt.row, template):
            return fill_template(template, prompt.row, prompt.id)
        return ""

    def _find_row_fault(self, row: DataRow) -> str | None:
        # A row without an answer should also stop a run before it starts, not at step 40.
        return self._prompt_fault(row) or self._answer_fault(row) or self._rule.fault(row)

    def _answer_fault(self, row: DataRow) -> str | None:
        if not self._rule.reads_answer(row):
            return None
        asking = find_askers({"data.answer": self._data.answer})
        wrong = find_field_fault(row, dict.fromkeys(asking, "any"), asking)
        if wrong is not None:
            return wrong
        try:
            answer = fill_template(self._data.answer, row, "")
        except DataError as error:
            return str(error).removeprefix(": ")
        return self._rule.answer_fault(row, answer)

    def _encode_rows(
        self, rows: FileRows, numbers: Sequence[int], contents: Sequence[DataRow]
    ) -> list[Prompt]:
        return prompts_of(rows, numbers, contents, self._tokenizer, self._data)

    def _find_length_fault(self, item: Prompt) -> str | None:
        return too_long(item, self._data.max_prompt_tokens)
