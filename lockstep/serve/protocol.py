"""Bodies of requests: the fields that the endpoint handles; any other is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from lockstep.core.errors import shorten_text
from lockstep.core.types import SamplingParams
from lockstep.serve.refusals import RequestRefused

MOST_CHOICES = 128
_COMPLETION_TOKENS = 16
"""Default of OpenAI's API for completions of text."""

StopText = Annotated[str, Field(min_length=1, max_length=256)]


class RequestWords(BaseModel):
    """A part of a body; types are strict, so that "1" is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DrawFields(RequestWords):
    """Options of the distribution, and of the end of a response; None: the default."""

    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: PositiveInt | None = None

    @property
    def choices(self) -> int:
        """Number of responses."""
        return self.n or 1

    def build_sampling(self, stops: Sequence[int], room: int) -> SamplingParams:
        """The distribution.

        Args:
            stops: Stop tokens of the model.
            room: Most tokens that a response can have.
        """
        given = {name: value for name in _SAME_NAMES if (value := getattr(self, name)) is not None}
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        tokens = {*(() if self.ignore_eos else stops), *(self.stop_token_ids or ())}
        sampling = SamplingParams(
            min(self.max_tokens or room, room),
            top_k=max(self.top_k or 0, 0),
            stop=tuple(strings),
            stop_token_ids=tuple(sorted(tokens)),
        )
        return _share_equal(replace(sampling, **given))


_SAME_NAMES = (
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""Fields of `SamplingParams` with the same name and meaning."""


class StreamOptions(RequestWords):
    """Options of a stream."""

    include_usage: bool = False


class ChatBody(DrawFields):
    """The body of a request for the next message of a conversation."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool = False
    top_logprobs: Literal[0] | None = None
    return_token_ids: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def template_values(self) -> dict[str, Any]:
        """Arguments of the chat template."""
        tools = {"tools": self.tools} if self.tools else {}
        return {**(self.chat_template_kwargs or {}), **tools}

    @property
    def draw(self) -> DrawFields:
        """Options of the distribution, with the lower of two limits."""
        limits = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit]
        return self.model_copy(update={"max_tokens": min(limits, default=None)})


class CompletionBody(DrawFields):
    """The body of a request for the continuation of a text, or of token ids."""

    prompt: str | Annotated[list[int], Field(min_length=1)]
    model: str | None = None
    max_tokens: PositiveInt | None = _COMPLETION_TOKENS
    logprobs: Literal[0] | None = None
    return_token_ids: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def draw(self) -> DrawFields:
        """Options of the distribution."""
        return self


class GenerateFields(DrawFields):
    """Options of the distribution for token ids; options of text change nothing."""

    logprobs: Literal[0, 1] | None = None
    detokenize: bool = False
    skip_special_tokens: bool = False


class GenerateBody(RequestWords):
    """The body of a request for the continuation of token ids, as token ids.

    `cache_salt` and `priority` change no response, and are accepted for clients that send them.
    """

    token_ids: Annotated[list[int], Field(min_length=1)]
    sampling_params: GenerateFields
    model: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    return_token_ids: Literal[True] = True
    stream: Literal[False] = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def draw(self) -> DrawFields:
        """Options of the distribution."""
        return self.sampling_params


RequestBody = ChatBody | CompletionBody | GenerateBody
BodyT = TypeVar("BodyT", bound=RequestWords)


def read_fields(kind: type[BodyT], body: dict[str, Any]) -> BodyT:
    """Reads the fields of a body.

    Raises:
        RequestRefused: A field is unknown or invalid; names the first.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            why = f"this server does not support the field {shorten_text(name)}; leave it out"
        else:
            why = f"{shorten_text(name)}: {first['msg']}"
        raise RequestRefused(400, why, shorten_text(name)) from None


@lru_cache(maxsize=1024)
def _share_equal(sampling: SamplingParams) -> SamplingParams:
    """The first of equal parameters: sequences that share them are drawn together."""
    return sampling
