"""Dialects of servers that speak OpenAI's protocol: the options that each understands besides it, and their answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from lockstep.core.borders import LARGEST_LOGPROB
from lockstep.core.errors import InputError, shorten
from lockstep.core.types import SamplingParams

_NEUTRAL = {"repetition_penalty": 1.0, "min_p": 0.0, "top_k": 0}
"""Options that OpenAI's own servers do not know, and values at which they change nothing."""


@dataclass(frozen=True)
class Dialect:
    """A kind of server, by the requests that it understands besides OpenAI's own.

    Attributes:
        name: Name of the kind.
        every_token: Value of `top_k` that keeps all tokens; None: the server knows neither top_k nor stop token ids.
        ids: Options that request token ids in the answer.
        only_our_stops: Options to stop at our stop tokens alone, and not at the model's own as well.
        logprobs: Whether completions come with log-probabilities.
    """

    name: str
    every_token: int | None = None
    ids: dict[str, bool] = field(default_factory=dict)
    only_our_stops: dict[str, bool] = field(default_factory=dict)
    logprobs: bool = False

    def fields(self, sampling: SamplingParams) -> dict[str, object]:
        """Returns the request's options for a distribution and its stop tokens.

        Raises:
            ValueError: If the server has no options for it.
        """
        options: dict[str, object] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.stop:
            raise InputError(
                "sampling.stop ends a response of the torch sampler or of vLLM in this program; a server cuts text off "
                "in a way of its own, so leave it out"
            )
        penalties = {"presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty}
        others = {
            "repetition_penalty": sampling.repetition_penalty,
            "min_p": sampling.min_p,
            "top_k": sampling.top_k,
        }
        if self.every_token is not None:  # all are sent: otherwise servers take defaults from the model's folder
            stops = {"stop_token_ids": list(sampling.stop_token_ids)}
            return options | penalties | others | stops | self.ids | {"top_k": sampling.top_k or self.every_token}
        for name, value in others.items():
            if value != _NEUTRAL[name]:
                raise InputError(f"{self.name} is not known to understand {name}; leave it at {_NEUTRAL[name]:g}")
        return options | (penalties if sampling.counts_response else {})

    def require_exact(self, sampling: SamplingParams) -> None:
        """Raises ValueError if the server's log-probabilities may not be those of the sampling distribution.

        Depending on how a server was started, it returns those of temperature 1 and the whole vocabulary, or those of
        the sampling distribution, and does not say which. So they are accepted only where both are the same.
        """
        if not self.logprobs:
            raise InputError(f"{self.name} gives no log-probabilities of what it completes; do without them")
        if not sampling.unshaped:
            raise InputError(
                f"{self.name} does not say of which distribution its log-probabilities are; they are exact with "
                "temperature 0 or 1, top_k 0, top_p 1, min_p 0 and no penalties only: sample so, or do without them"
            )


DIALECTS = {
    "vllm": Dialect("vLLM", 0, {"return_token_ids": True}, {"ignore_eos": True}, logprobs=True),
    "sglang": Dialect("SGLang", -1, logprobs=True),
    "tensorrt_llm": Dialect("TensorRT-LLM", 0),
}
"""The dialects, by the name that a server gives itself in `owned_by` of the models that it lists."""


_ID = "token_id:"
"""Prefix of the name of a token that a server gives by its id."""

_LONGEST_TOKEN = 4096
"""Characters; vocabularies have runs of spaces of a few hundred."""


class ServerWords(BaseModel):
    """A part of a server's answer; types are strict, so that "1" is not read as a number."""

    model_config = ConfigDict(strict=True)


class Model(ServerWords):
    """A model that a server serves."""

    id: str
    owned_by: str | None = None
    max_model_len: PositiveInt | None = None


class Models(ServerWords):
    """A server's answer to /models."""

    data: list[Model]


def _replace_half_characters(text: str) -> str:
    """Replaces unpaired surrogates, which JSON can hold and UTF-8 cannot, by the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Text = Annotated[str, AfterValidator(_replace_half_characters)]
"""A text that can be written to a file."""


class Message(ServerWords):
    """A message of a conversation; its content is None if there was only reasoning, which some servers keep apart."""

    content: Text | None = None


class Logprobs(ServerWords):
    """Log-probabilities of the sampled tokens, nats, and the tokens, as text or as `token_id:7`."""

    token_logprobs: list[Annotated[float, Field(le=LARGEST_LOGPROB, allow_inf_nan=False)]]
    tokens: list[str] | None = None


class Choice(ServerWords):
    """A response; `stop_reason` is the stop token that ended it, and `error` why there is none, if a server says so."""

    index: int | None = None
    error: Any = None
    text: Text = ""
    message: Message = Message()
    finish_reason: str | None = None
    stop_reason: int | str | None = Field(default=None, validation_alias=AliasChoices("stop_reason", "matched_stop"))
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


class Usage(ServerWords):
    """Tokens as a server counts them."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt


class Completion(ServerWords):
    """A server's answer to /completions and /chat/completions."""

    choices: list[Choice] = Field(min_length=1, max_length=1)
    usage: Usage

    @property
    def num_tokens(self) -> int:
        ids = self.choices[0].token_ids
        return self.usage.completion_tokens if ids is None else len(ids)

    def fault(self, max_tokens: int) -> str | None:
        """The reason why this cannot be a response of at most `max_tokens` tokens; None if it can."""
        choice = self.choices[0]
        if choice.error:
            return f"its choice holds an error ({shorten(str(choice.error))})"
        if choice.index not in (None, 0):
            return f"its only choice has the index {choice.index}, as if it answered another request"
        if self.num_tokens > max_tokens + 1:  # some servers count the stop token in addition
            return f"it answers with {self.num_tokens} tokens, where {max_tokens} were asked for at most"
        characters = len(choice.text or choice.message.content or "")
        if characters > _LONGEST_TOKEN * (self.num_tokens + 1):
            return f"it answers with {characters:,} characters in {self.num_tokens} tokens"
        named = choice.logprobs.tokens if choice.logprobs else None
        if named and choice.token_ids and named[0].startswith(_ID) and named != [f"{_ID}{n}" for n in choice.token_ids]:
            return "its log-probabilities are of other tokens than it answers with"
        return None


@dataclass(frozen=True)
class Ends:
    """Limits within which responses end.

    Attributes:
        max_tokens: Longest response.
        stops: The tokens that may end it; None: not known.
        vocabulary: Size of the vocabulary; None: not known.
        context: Longest prompt and response together; None: not known.
    """

    max_tokens: int
    stops: Collection[int] | None
    vocabulary: int | None
    context: int | None

    def are_broken_by(self, answer: Completion) -> bool:
        """True if a response did not end at a stop token or a limit, as far as the server's answer tells."""
        choice = answer.choices[0]
        ids = choice.token_ids or ()
        if self.vocabulary is not None and not all(0 <= token < self.vocabulary for token in ids):
            return True
        match choice.finish_reason:
            case "length":
                return answer.num_tokens != self.max_tokens and not self._fills_the_context(answer)
            case "stop":
                return self.stops is not None and not _is_stopped(choice, self.stops)
        return True

    def _fills_the_context(self, answer: Completion) -> bool:
        """True if a response fills the context; some servers leave the last place free."""
        return self.context is not None and answer.usage.prompt_tokens + answer.num_tokens >= self.context - 1


def _is_stopped(choice: Choice, stops: Collection[int]) -> bool:
    """True if the last token is a stop token; without token ids, by the server's `stop_reason`, if it gives one."""
    if choice.token_ids is not None:
        return bool(choice.token_ids) and choice.token_ids[-1] in stops
    return choice.stop_reason is None or choice.stop_reason in stops
