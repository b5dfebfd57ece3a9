"""Dialects of OpenAI-compatible servers: their additional options, and their responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt

from lockstep.core.errors import InputError, shorten_text
from lockstep.core.types import SamplingParams

_NEUTRAL = {"repetition_penalty": 1.0, "min_p": 0.0, "top_k": 0}
"""Options that OpenAI's own servers lack, and values that disable them."""


@dataclass(frozen=True)
class ServerDialect:
    """A kind of server: the request options that it supports in addition to OpenAI's.

    Attributes:
        name: Name of the kind.
        every_token: Value of `top_k` that keeps all tokens; None: no support for top_k and stop
            token ids.
    """

    name: str
    every_token: int | None = None

    def request_options(self, sampling: SamplingParams) -> dict[str, object]:
        """The request options for a distribution and its stop tokens.

        Raises:
            ValueError: If the server does not support it.
        """
        options: dict[str, object] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.stop:
            raise InputError(
                "sampling.stop is supported only by the torch sampler and vLLM in this program, "
                "not by a server; leave it out"
            )
        penalties = {
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        others = {
            "repetition_penalty": sampling.repetition_penalty,
            "min_p": sampling.min_p,
            "top_k": sampling.top_k,
        }
        # all are sent: otherwise servers use defaults from the model's folder
        if self.every_token is not None:
            stops = {"stop_token_ids": list(sampling.stop_token_ids)}
            return (
                options | penalties | others | stops | {"top_k": sampling.top_k or self.every_token}
            )
        for name, value in others.items():
            if value != _NEUTRAL[name]:
                raise InputError(
                    f"{self.name} is not known to support {name}; leave it at {_NEUTRAL[name]:g}"
                )
        return options | (penalties if sampling.counts_response else {})


DIALECTS = {
    "vllm": ServerDialect("vLLM", 0),
    "sglang": ServerDialect("SGLang", -1),
    "tensorrt_llm": ServerDialect("TensorRT-LLM", 0),
}
"""Dialects by the name that a server reports as `owned_by` of its models."""


_LONGEST_TOKEN = 4096
"""Limit in characters; vocabularies have runs of spaces of a few hundred."""


class ServerWords(BaseModel):
    """A part of a server's response; types are strict, so that "1" is not a number."""

    model_config = ConfigDict(strict=True)


class ServedModel(ServerWords):
    """A model on a server."""

    id: str
    owned_by: str | None = None


class ModelList(ServerWords):
    """A server's response to /models."""

    data: list[ServedModel]


def _replace_half_characters(text: str) -> str:
    """Replaces unpaired surrogates, which UTF-8 cannot encode, by the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


ReplyText = Annotated[str, AfterValidator(_replace_half_characters)]
"""Text that can be written to a file."""


class ReplyMessage(ServerWords):
    """A message of a conversation.

    Its content is None if there was only reasoning, which some servers return separately.
    """

    content: ReplyText | None = None


class ReplyChoice(ServerWords):
    """A response; `error` explains why it is missing, if the server reports it."""

    index: int | None = None
    error: Any = None
    message: ReplyMessage = ReplyMessage()
    finish_reason: str | None = None


class TokenUsage(ServerWords):
    """Token counts by the server."""

    completion_tokens: NonNegativeInt


class ChatReply(ServerWords):
    """A server's response to /chat/completions."""

    choices: list[ReplyChoice] = Field(min_length=1, max_length=1)
    usage: TokenUsage

    @property
    def num_tokens(self) -> int:
        return self.usage.completion_tokens

    def describe_fault(self, max_tokens: int) -> str | None:
        """Explains why this cannot be a response of at most `max_tokens` tokens; None if it can."""
        choice = self.choices[0]
        if choice.error:
            return f"its choice contains an error ({shorten_text(str(choice.error))})"
        if choice.index not in (None, 0):
            return f"its only choice has index {choice.index} instead of 0"
        if self.num_tokens > max_tokens + 1:  # some servers also count the stop token
            return f"it returned {self.num_tokens} tokens, more than max_tokens={max_tokens}"
        characters = len(choice.message.content or "")
        if characters > _LONGEST_TOKEN * (self.num_tokens + 1):
            return f"it returned {characters:,} characters in {self.num_tokens} tokens"
        return None
