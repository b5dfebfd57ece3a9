"""Prompts of conversations: the model's chat template writes them, drawn tokens stay as drawn.

A session remembers the text and tokens of its conversations so far. If the template writes the
next prompt with such a text at its start, the prompt begins with those tokens: a local encoding of
the same text can differ from what the model drew. If the template or the client changes the
earlier text, the prompt is encoded from the start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.errors import shorten_text
from lockstep.data.messages import (
    ChatMessage,
    ChatTemplateError,
    render_prompt,
    render_whole,
    require_template,
)
from lockstep.environments.options import ToolFormat
from lockstep.models.source import ModelSource
from lockstep.serve.choices import DrawnChoice
from lockstep.serve.protocol import ChatBody
from lockstep.serve.refusals import RequestRefused

_MOST_CONVERSATIONS = 16
"""Turns that a session remembers: the newest of its conversations and their branches."""


@dataclass(frozen=True)
class EndpointPrompt:
    """A prompt as text and as the tokens that the model reads; `text` is empty for given tokens."""

    text: str
    tokens: tuple[int, ...]


class ConversationMemory:
    """The newest conversations of a session: text so far → the tokens that were read and drawn."""

    def __init__(self) -> None:
        self._known = OrderedDict[str, tuple[int, ...]]()

    def find_start(self, text: str) -> tuple[str, tuple[int, ...]]:
        """The longest remembered text with which a prompt begins, and its tokens."""
        starts = [known for known in self._known if text.startswith(known)]
        start = max(starts, key=len, default="")
        return start, self._known.get(start, ())

    def remember(self, text: str, tokens: tuple[int, ...]) -> None:
        self._known[text] = tokens
        while len(self._known) > _MOST_CONVERSATIONS:
            self._known.popitem(last=False)


def render_chat(body: ChatBody, source: ModelSource, memory: ConversationMemory) -> EndpointPrompt:
    """The prompt of a conversation.

    Raises:
        RequestRefused: A message is malformed, or the chat template rejects the conversation.
    """
    messages = _read_messages(body)
    try:
        if body.chat_template_kwargs:
            require_template(source.tokenizer, body.chat_template_kwargs, "chat_template_kwargs")
        text = render_prompt(messages, source.tokenizer, body.template_values)
        start, tokens = memory.find_start(text)
        return EndpointPrompt(text, (*tokens, *source.token_ids(text[len(start) :])))
    except ChatTemplateError as error:
        raise RequestRefused(
            400, f"the model's chat template rejects the messages ({error})", "messages"
        ) from None
    except ValueError as error:  # such as text that cannot be encoded
        raise RequestRefused(400, str(error), "messages") from None


def remember_reply(
    body: ChatBody,
    source: ModelSource,
    memory: ConversationMemory,
    prompt: EndpointPrompt,
    choice: DrawnChoice,
    message: Mapping[str, Any],
) -> None:
    """Remembers a drawn response, as it was drawn and as the template writes its message."""
    tokens = (*prompt.tokens, *choice.token_ids)
    memory.remember(prompt.text + _decode_all(source, choice.token_ids), tokens)
    written = _write_reply(body, source, prompt.text, choice, message)
    if written is not None:
        memory.remember(written, tokens)


def _write_reply(
    body: ChatBody,
    source: ModelSource,
    prompt: str,
    choice: DrawnChoice,
    message: Mapping[str, Any],
) -> str | None:
    """A prompt and a reply by the template, with the reply's stop token if it was drawn.

    None if the template does not write them so, or the message lacks text that was drawn.
    """
    if choice.cut_text:
        return None
    talk = [*_read_messages(body), {**message, "content": message.get("content") or ""}]
    try:
        whole = render_whole(talk, source.tokenizer, body.template_values)
    except ChatTemplateError:
        return None
    stops = [str(source.tokenizer.decode([stop])) for stop in source.stop_token_ids]
    place, stop = max((whole.rfind(stop), stop) for stop in stops)
    if not whole.startswith(prompt) or place < len(prompt):
        return None
    return whole[: place if choice.truncated else place + len(stop)]


def _decode_all(source: ModelSource, tokens: Sequence[int]) -> str:
    """The text of drawn tokens as a template would write it: special tokens are kept."""
    letter = source.token_ids("a")
    before = source.tokenizer.decode(letter, skip_special_tokens=False)
    text = source.tokenizer.decode([*letter, *tokens], skip_special_tokens=False)
    return str(text)[len(before) :]


def find_tool_format(source: ModelSource, chosen: ToolFormat | None) -> ToolFormat | None:
    """The format of a model's tool calls: the chosen one, or the one in its chat template."""
    template = str(source.tokenizer.chat_template)
    if chosen is not None:
        return chosen
    if "<tool_call>" in template:
        return "hermes"
    if '"parameters": ' in template:
        return "llama3_json"
    return None


def _read_messages(body: ChatBody) -> list[ChatMessage]:
    return [_read_message(number, message) for number, message in enumerate(body.messages)]


def _read_message(number: int, message: Mapping[str, Any]) -> ChatMessage:
    """A message for the template: its text parts joined, its null fields left out."""
    where = f"messages.{number}"
    if not isinstance(message.get("role"), str):
        raise RequestRefused(400, f"{where}: role must be a string", where)
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(_read_part(part, where) for part in content)
    elif not isinstance(content, str):
        raise RequestRefused(400, f"{where}: content must be a string or a list of parts", where)
    given = {name: value for name, value in message.items() if value is not None}
    if "tool_calls" in given:
        given["tool_calls"] = _order_calls(given["tool_calls"], where)
    return {**given, "content": content}


def _order_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Tool calls with the name before the arguments: clients return them in any order."""
    ordered = list[dict[str, Any]]()
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise RequestRefused(400, f"{where}: tool_calls must be calls of functions", where)
        first = {name: function[name] for name in ("name", "arguments") if name in function}
        ordered.append({**call, "function": {**first, **function}})
    return ordered


def _read_part(part: object, where: str) -> str:
    fields = part if isinstance(part, dict) else {}
    text = fields.get("text")
    if not isinstance(text, str):
        found = shorten_text(str(fields.get("type")))
        raise RequestRefused(
            400, f"{where}: a part is {found}, but this server reads only text", where
        )
    return text
