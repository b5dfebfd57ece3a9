"""Conversations in rows: lists of {role, content}, as the tokenizer's chat template expects."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta
from transformers import PreTrainedTokenizerBase

from lockstep.config.sources import TemplateArgs
from lockstep.core.errors import InputError, first_line
from lockstep.data.limits import MOST_BYTES, limit_template
from lockstep.data.rows import DataRow
from lockstep.data.template_date import strftime_now
from lockstep.data.templates import find_field_fault, find_messages, read_field
from lockstep.system import strict_json
from lockstep.system.printable import print_note

ChatMessage = Mapping[str, Any]

NO_ARGS: TemplateArgs = {}
"""No arguments: the template's own defaults."""

TemplateValues = Mapping[str, Any]
"""Arguments of a template: the recipe's, and `tools` if the row has any."""

_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_GIVEN = {
    *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
    *("tokenize", "raise_exception", "strftime_now", "additional_special_tokens"),
    *(f"{name}_token" for name in _TOKENS),
}
"""Template variables that `transformers` or Lockstep sets."""

_MARKS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""A statement that only `transformers` knows: it marks the assistant's text."""

_QUESTION = "Question."
_ANSWER = "An answer."
_TALK: Sequence[ChatMessage] = [
    {"role": "user", "content": _QUESTION},
    {"role": "assistant", "content": _ANSWER},
]


class ChatTemplateError(InputError):
    """The tokenizer's chat template fails or refuses a conversation."""


def read_question(row: DataRow, field: str) -> tuple[ChatMessage, ...]:
    """The messages in a field that need an answer: all but a final assistant message."""
    messages = tuple(read_field(row, field))
    if messages and messages[-1]["role"] == "assistant":
        return messages[:-1]
    return messages


def read_tools(row: DataRow) -> list[Any] | None:
    """The tool schemas in a row's field `tools`, a list or JSON text; None without the field."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools, **strict_json.HOOKS)
        except (ValueError, RecursionError):
            return None
    if not isinstance(tools, list) or not tools:
        return None
    if all(isinstance(tool, dict) and {"function", "name"} & tool.keys() for tool in tools):
        return tools
    return None


def render_plain(message: ChatMessage) -> str:
    """A message as plain text: its content, then its tool calls as JSON."""
    calls = [json.dumps(call, ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "\n".join(filter(None, (message.get("content"), *calls)))


def render_prompt(
    messages: Sequence[ChatMessage],
    tokenizer: PreTrainedTokenizerBase,
    args: TemplateValues = NO_ARGS,
) -> str:
    """Renders a conversation as the model reads it, up to the start of the reply.

    Raises:
        ChatTemplateError: The tokenizer's chat template refuses the conversation.
    """
    return _render_text(messages, tokenizer, True, args)


def render_whole(
    messages: Sequence[ChatMessage],
    tokenizer: PreTrainedTokenizerBase,
    args: TemplateValues = NO_ARGS,
) -> str:
    """Renders a conversation with its last answer.

    Raises:
        ChatTemplateError: The tokenizer's chat template refuses the conversation.
    """
    return _render_text(messages, tokenizer, False, args)


def require_template(
    tokenizer: PreTrainedTokenizerBase, args: TemplateArgs = NO_ARGS, option: str = "data"
) -> None:
    """Raises InputError if a chat template cannot render conversations or lacks an argument.

    `args` come from `option`.template_args. Prints a note if the template omits user messages.
    """
    _refuse_powers(tokenizer)
    if re.search(r"\|\s*random\b|\blipsum\b", str(tokenizer.chat_template)):
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} uses random values, so prompts would "
            "change each time; remove them"
        )
    _refuse_unknown(tokenizer, args, f"{option}.template_args")
    try:
        text = _render_text([{"role": "user", "content": _QUESTION}], tokenizer, True, args)
        if _QUESTION not in text:
            print_note(
                f"the chat template of {tokenizer.name_or_path} omits user messages, so all "
                "prompts are the same; use one that takes content as text"
            )
    except ChatTemplateError as error:
        if isinstance(error.__cause__, TemplateSyntaxError):
            raise
        if isinstance(error.__cause__, TimeoutError):  # once per row would be too often
            raise InputError(
                f"the chat template of {tokenizer.name_or_path} cannot be used: {error}"
            ) from error


def _refuse_unknown(tokenizer: PreTrainedTokenizerBase, args: TemplateArgs, option: str) -> None:
    """Refuses arguments that a template does not read or that Lockstep sets."""
    if not args:
        return
    try:
        template = _MARKS.sub("", tokenizer.get_chat_template())
        with limit_template():  # parsing computes its constants
            parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
            known = sorted(meta.find_undeclared_variables(parsed) - _GIVEN)
    except (
        TemplateSyntaxError,
        ValueError,
        TypeError,
        MemoryError,
        TimeoutError,
    ):  # rendering it reports why
        return
    unknown = next((name for name in args if name not in known), None)
    if unknown is not None:
        has = f"it uses {', '.join(known)}" if known else "it takes no arguments"
        raise InputError(
            f"{option} has {unknown}, which the chat template of {tokenizer.name_or_path} does "
            f"not use; {has}"
        )


def _refuse_powers(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a template that computes powers: one huge operation evades any time limit."""
    templates = tokenizer.chat_template
    for text in templates.values() if isinstance(templates, dict) else [templates or ""]:
        try:
            operators = [word for _, kind, word in Environment().lex(text) if kind == "operator"]
        except TemplateSyntaxError:  # rendering it reports where
            return
        if "**" in operators:
            raise InputError(
                f"the chat template of {tokenizer.name_or_path} computes a power (**), which may "
                "never finish; replace it with its result"
            )


def find_passed_end(
    tokenizer: PreTrainedTokenizerBase, stops: Collection[int], args: TemplateValues = NO_ARGS
) -> int | None:
    """Returns the token with which the template ends answers, if the model does not stop there."""
    closing = tokenizer(render_closing(tokenizer, args) or "", add_special_tokens=False)[
        "input_ids"
    ]
    if any(token in stops for token in closing):
        return None
    return next((token for token in closing if token in tokenizer.added_tokens_decoder), None)


def _render_text(
    messages: Sequence[ChatMessage],
    tokenizer: PreTrainedTokenizerBase,
    add_generation_prompt: bool,
    args: TemplateValues,
) -> str:
    talk = [dict(message) for message in messages]
    for message in talk:
        if message.get("tool_calls"):
            message["content"] = message.get("content")
            message["tool_calls"] = list(map(_read_arguments, message["tool_calls"]))
    options: dict[str, Any] = {
        "add_generation_prompt": add_generation_prompt,
        "strftime_now": strftime_now,
        **args,
    }
    try:
        return _apply_template(talk, tokenizer, options)
    except ChatTemplateError:
        if all(message.get("content") is not None for message in talk):
            raise
    # Some templates accept null content, and others concatenate it as text.
    return _apply_template(
        [{**message, "content": message.get("content") or ""} for message in talk],
        tokenizer,
        options,
    )


def _read_arguments(call: Any) -> Any:
    """Returns a tool call; if its arguments are JSON text of an object, they become the object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"], **strict_json.HOOKS)
    except strict_json.StrictJsonError as error:
        raise ChatTemplateError(f"the text of a call's arguments {error}") from error
    except (ValueError, RecursionError):
        return call
    if isinstance(arguments, dict):
        return {**call, "function": {**function, "arguments": arguments}}
    return call


def _apply_template(
    talk: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
) -> str:
    try:
        with limit_template():
            return str(tokenizer.apply_chat_template(talk, tokenize=False, **options))
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template of {tokenizer.name_or_path} is invalid Jinja (line "
            f"{error.lineno}: {first_line(error)}); copy the tokenizer's files again, or correct "
            "it"
        ) from error
    except MemoryError as error:
        raise ChatTemplateError(f"it needs more than {MOST_BYTES >> 30} GiB of memory") from error
    except Exception as error:  # templates are programs and may raise anything
        raise ChatTemplateError(first_line(error)) from error


def find_answer_end(
    tokenizer: PreTrainedTokenizerBase,
    stops: Collection[int],
    args: TemplateValues = NO_ARGS,
    talk: Sequence[ChatMessage] = _TALK,
    answer: str = _ANSWER,
) -> int | None:
    """Returns the first of `stops` that the template writes after an answer; None if none."""
    closing = render_closing(tokenizer, args, talk, answer)
    tokens = tokenizer(closing or "", add_special_tokens=False)["input_ids"]
    return next((token for token in tokens if token in stops), None)


def render_closing(
    tokenizer: PreTrainedTokenizerBase,
    args: TemplateValues = NO_ARGS,
    talk: Sequence[ChatMessage] = _TALK,
    answer: str = _ANSWER,
) -> str | None:
    """Returns the text after an answer in the chat template; None if it refuses the conversation.

    Args:
        tokenizer: Tokenizer with the chat template.
        args: Arguments of the template.
        talk: A conversation that ends with the answer.
        answer: The text of the answer.
    """
    try:
        return _render_text(talk, tokenizer, False, args).rpartition(answer)[2]
    except ChatTemplateError:
        return None


def render_follow_up(
    text: str, tokenizer: PreTrainedTokenizerBase, args: TemplateValues = NO_ARGS
) -> str:
    """Returns the text between an answer and the next reply, with `text` from the user.

    It is the end of the answer, the user's message, and the opening of the next reply.

    Raises:
        ChatTemplateError: The tokenizer's chat template refuses the conversation.
    """
    follows = render_prompt([*_TALK, {"role": "user", "content": text}], tokenizer, args).partition(
        _ANSWER
    )[2]
    if not follows:
        raise ChatTemplateError("it omits assistant messages")
    return follows


def find_messages_fault(
    row: DataRow, field: str, tokenizer: PreTrainedTokenizerBase, args: TemplateValues = NO_ARGS
) -> str | None:
    """Returns the error in a row's messages that need an answer; None if valid."""
    wrong = find_shape_fault(row, field)
    if wrong is not None:
        return wrong
    if not read_question(row, field):
        return f"has no message to answer in the field {field!r}"
    try:
        render_prompt(read_question(row, field), tokenizer, args)
    except ChatTemplateError as error:
        return (
            f"has messages in the field {field!r} that the tokenizer's chat template rejects "
            f"({error})"
        )
    return None


def text_fault(row: DataRow, template: str, option: str) -> str | None:
    """Returns an error if a text template would write messages as JSON; else None."""
    field = find_messages(row, template)
    if field is None:
        return None
    cure = f"data.messages={field} renders them with the chat template, instead of {option}"
    return (
        f"has messages in the field {field!r}, which {option}={template!r} would write as "
        f"JSON; {cure}"
    )


def answer_fault(row: DataRow, field: str) -> str | None:
    """Returns the error in the answer at the end of a field's messages; None if valid."""
    wrong = find_shape_fault(row, field)
    if wrong is None and (
        not read_field(row, field) or read_field(row, field)[-1]["role"] != "assistant"
    ):
        return f"has no final assistant answer in the field {field!r}"
    return wrong


def find_shape_fault(row: DataRow, field: str) -> str | None:
    """Returns why a field does not hold messages; None if it does."""
    wrong = find_field_fault(row, {field: "list"})
    if wrong is not None:
        return wrong
    for number, message in enumerate(read_field(row, field), start=1):
        if not _is_message(message):
            return (
                f'has in the field {field!r} a message, number {number}, that is not {{"role": '
                f'text, "content": text}}'
            )
    return None


def _is_message(message: Any) -> bool:
    """True for a role with a text or tool calls; with calls, the text may be missing."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    calls = message.get("tool_calls")
    has_calls = isinstance(calls, list) and bool(calls)
    return isinstance(message.get("content"), str) or (has_calls and message.get("content") is None)
