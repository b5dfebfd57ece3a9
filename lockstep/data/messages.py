"""Conversations in rows: lists of {role, content}, as the tokenizer's chat template takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from lockstep.data.rows import Row
from lockstep.data.templates import complaint

Message = Mapping[str, Any]


def asked(row: Row, field: str) -> tuple[Message, ...]:
    """The messages in a field that are to be answered: all, but for an answer by the assistant at the end."""
    messages = tuple(row[field])
    return messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages


def opened(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    """A conversation as the model reads it, up to where the reply begins.

    Raises:
        TemplateError: The tokenizer's chat template refuses the conversation.
    """
    return str(
        tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
    )


def fault(row: Row, field: str, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What is wrong with the messages of a row, if anything."""
    wrong = complaint(row, {field: "list"})
    if wrong is not None:
        return wrong
    for number, message in enumerate(row[field], start=1):
        texts = [message.get(name) for name in ("role", "content")] if isinstance(message, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            return (
                f'has in the field {field!r} a message, number {number}, that is not {{"role": text, "content": text}}'
            )
    if not asked(row, field):
        return f"has in the field {field!r} no message that could be answered"
    try:
        opened(asked(row, field), tokenizer)
    except TemplateError as error:
        return f"has in the field {field!r} messages that the tokenizer's chat template refuses ({error})"
    return None
