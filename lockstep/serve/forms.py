"""Answers in the form of their request: whole, or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from lockstep.environments.options import ToolFormat
from lockstep.models.source import ModelSource
from lockstep.serve.choices import DrawnChoice, build_message
from lockstep.serve.prompts import EndpointPrompt
from lockstep.serve.protocol import ChatBody, CompletionBody, GenerateBody, RequestBody


@dataclass(frozen=True)
class AnswerForm:
    """Builds the answer to one request.

    Attributes:
        body: The request.
        request_id: Id of the answer.
        prompt: What the policy read.
        source: Its tokenizer.
        model: Name of the served model.
        created: When the request came, seconds since 1970.
        tool_format: Format of tool calls; None: the request has no tools.
    """

    body: RequestBody
    request_id: str
    prompt: EndpointPrompt
    source: ModelSource
    model: str
    created: int
    tool_format: ToolFormat | None

    def build_choice(self, choice: DrawnChoice) -> dict[str, Any]:
        """A choice of the answer."""
        built: dict[str, Any] = {
            "index": choice.index,
            "finish_reason": choice.finish_reason,
            "logprobs": self._list_logprobs(choice),
            "weight_versions": choice.spans,
        }
        if self.body.return_token_ids:
            built["token_ids"] = list(choice.token_ids)
        match self.body:
            case ChatBody():
                message, reason = build_message(
                    choice, self.prompt.text, self.request_id, self.tool_format
                )
                return {**built, "message": message, "finish_reason": reason}
            case CompletionBody():
                return {**built, "text": choice.text, **self._prompt_ids}
            case GenerateBody():
                return {**built, "stop_reason": None}
            case _:
                assert_never(self.body)

    def wrap_choices(
        self, choices: Sequence[DrawnChoice], built: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The whole answer."""
        answer = {"choices": list(built), "usage": self._count_usage(choices)}
        match self.body:
            case ChatBody():
                return {**self._head("chat.completion"), **answer, **self._prompt_ids}
            case CompletionBody():
                return {**self._head("text_completion"), **answer}
            case GenerateBody():
                return {"request_id": self.request_id, **answer}
            case _:
                assert_never(self.body)

    def stream_events(
        self, choices: Sequence[DrawnChoice], built: Sequence[Mapping[str, Any]]
    ) -> Iterator[str]:
        """The answer as server-sent events; prompt tokens are in the first only."""
        is_chat = isinstance(self.body, ChatBody)
        head = self._head("chat.completion.chunk" if is_chat else "text_completion")
        first = self._prompt_ids if is_chat else {}
        for choice in built:
            for part in _split_choice(choice):
                yield _write_event({**head, "choices": [part], **first})
                first = {}
        if self.body.stream_options.include_usage:
            yield _write_event({**head, "choices": [], "usage": self._count_usage(choices)})
        yield "data: [DONE]\n\n"

    @property
    def _prompt_ids(self) -> dict[str, Any]:
        if self.body.return_token_ids:
            return {"prompt_token_ids": list(self.prompt.tokens)}
        return {}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _count_usage(self, choices: Sequence[DrawnChoice]) -> dict[str, int]:
        read = len(self.prompt.tokens)
        drawn = sum(len(choice.token_ids) for choice in choices)
        return {
            "prompt_tokens": read,
            "completion_tokens": drawn,
            "total_tokens": read + drawn,
        }

    def _list_logprobs(self, choice: DrawnChoice) -> dict[str, Any] | None:
        """Log-probabilities of drawn tokens, if the request asks for them."""
        texts = [str(self.source.tokenizer.decode([token])) for token in choice.token_ids]
        rest: dict[str, Any] = {"top_logprobs": []}
        match self.body:
            case ChatBody(logprobs=True):
                content = [
                    {"token": text, "logprob": score, "bytes": list(text.encode()), **rest}
                    for text, score in zip(texts, choice.logprobs, strict=True)
                ]
                return {"content": content}
            case CompletionBody(logprobs=0):
                return {
                    "tokens": texts,
                    "token_logprobs": list(choice.logprobs),
                    "top_logprobs": None,
                    "text_offset": None,
                }
            case GenerateBody(sampling_params=fields) if fields.logprobs is not None:
                content = [
                    {"token_id": token, "logprob": score, "rank": None, **rest}
                    for token, score in zip(choice.token_ids, choice.logprobs, strict=True)
                ]
                return {"content": content}
            case _:
                return None


def _split_choice(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a choice: for a message its role, then the rest."""
    if "message" not in choice:
        return [dict(choice)]
    rest = dict(choice)
    message = rest.pop("message")
    calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls", ()))]
    delta = {"content": message["content"], **({"tool_calls": calls} if calls else {})}
    role = {"role": message["role"], "content": ""}
    opening = {"index": rest["index"], "delta": role, "finish_reason": None}
    return [opening, {**rest, "delta": delta}]


def _write_event(chunk: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
