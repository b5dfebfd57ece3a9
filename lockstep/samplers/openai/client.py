"""A client for a server that speaks OpenAI's protocol: vLLM's, SGLang's, TensorRT-LLM's `trtllm-serve`, or another.

The server already runs with weights of its own; only requests can be sent to it. So what it is, what it supports and
how its responses ended is checked as far as its answers allow (docs/guides/servers.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from lockstep import config
from lockstep.core.types import Reply, Request, SamplingParams
from lockstep.samplers.openai.dialects import DIALECTS, Completion, Dialect, Ends, Model, Models
from lockstep.servers.json_server import JsonServer, Lost, ServerAddress, ServerError

_SHOWN_MODELS = 5

_WARN_FROM = 0.01
"""Share of bad ends from which the user is warned."""

_SEED_BITS = 2**63 - 1
"""Mask of seeds that every server takes: not negative, in a signed 64-bit integer."""


class OpenAIClient:
    """A client that requests completions of prompts and answers to conversations from a server.

    Args:
        options: Address of the server, the model, and limits of requests.
        timeout_s: A request that is not answered within this is sent again.
        vocabulary: Size of the model's vocabulary, to find token ids outside of it; None: they are not checked.
        note: Shows the user a line.

    Attributes:
        answers: Number of replies.
        bad_ends: Number of them that ended as they should not: at no stop token, short of `max_tokens`, for an unknown
            reason, or with a token that is not in the vocabulary.

    Raises:
        ServerError: If the server cannot be reached, refuses the key, or does not serve the model.
    """

    def __init__(
        self,
        options: config.OpenAI,
        timeout_s: float,
        vocabulary: int | None = None,
        note: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.answers = self.bad_ends = 0
        self._server = JsonServer(ServerAddress.of_openai(options), timeout_s, note)
        self._options, self._vocabulary, self._note = options, vocabulary, note
        self._warned = False
        self._model = self._ask_model()
        self._dialect = self._find_dialect()

    def require(self, sampling: SamplingParams, logprobs: bool = False) -> None:
        """Raises ValueError if the server cannot express a distribution, or gives no log-probabilities under it."""
        if logprobs:
            self._dialect.require_exact(sampling)
        self._dialect.fields(sampling)

    def replies(
        self, requests: Sequence[Request], sampling: SamplingParams, logprobs: bool = False
    ) -> Iterator[tuple[int, Reply]]:
        """Completes prompts, which go out as token ids.

        Returns:
            Indices into `requests` and their replies, as they come.

        Raises:
            ValueError: If the server lacks a requested option.
            ServerError: While iterating, if the server fails after all retries.
        """
        self.require(sampling, logprobs)
        options = self._fields(sampling) | {"max_tokens": sampling.max_tokens, **self._dialect.only_our_stops}
        options |= {"logprobs": 1} if logprobs else {}
        bodies = [options | {"prompt": list(request.tokens), "seed": _seed(request.key)} for request in requests]
        return self._replies("/completions", bodies, self._ends(sampling, sampling.stop_token_ids))

    def chat(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        sampling: SamplingParams,
        keys: Sequence[int],
        lost: Lost | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        """Continues conversations in the server's own chat template; the model's own stop tokens end an answer too.

        Args:
            conversations: Messages with `role` and `content`.
            sampling: The sampling distribution.
            keys: Keys of the random numbers, one per conversation.
            lost: Called with each request that failed after all retries; None: the first such failure is raised.

        Returns:
            As `replies`.

        Raises:
            ValueError, ServerError: As `replies`.
        """
        options = self._fields(sampling) | {"max_completion_tokens": sampling.max_tokens}
        pairs = zip(conversations, keys, strict=True)
        bodies = [options | {"messages": [dict(m) for m in messages], "seed": _seed(key)} for messages, key in pairs]
        return self._replies("/chat/completions", bodies, self._ends(sampling, None), lost)

    def _ask_model(self) -> Model:
        """Queries the model that is served."""
        with self._server.connection() as (portal, client):
            served = {model.id: model for model in portal.call(self._server.ask, client, Models, "/models").data}
        if self._options.model not in served:
            others = [*list(served)[:_SHOWN_MODELS]]
            others += [f"and {len(served) - _SHOWN_MODELS:,} more"] if len(served) > _SHOWN_MODELS else []
            raise ServerError(
                f"{self._options.base_url}: serves {', '.join(others) or 'no model'}, and not {self._options.model}; "
                "correct the option model"
            )
        return served[self._options.model]

    def _find_dialect(self) -> Dialect:
        owner = self._model.owned_by
        if owner in DIALECTS:
            return DIALECTS[owner]
        self._note(
            f"{self._options.base_url}: the server calls itself {owner!r}, which is not known here; it is asked in "
            "OpenAI's own words, and stops where it will"
        )
        return Dialect(f"a server called {owner!r}")

    def _fields(self, sampling: SamplingParams) -> dict[str, object]:
        return {"model": self._model.id, **self._dialect.fields(sampling)}

    def _ends(self, sampling: SamplingParams, stops: tuple[int, ...] | None) -> Ends:
        return Ends(sampling.max_tokens, stops, self._vocabulary, self._model.max_model_len)

    def _replies(
        self, path: str, bodies: Sequence[Mapping[str, object]], ends: Ends, lost: Lost | None = None
    ) -> Iterator[tuple[int, Reply]]:
        """Sends all requests, and counts how their responses end."""

        def fault(place: int, answer: Completion) -> str | None:
            return answer.fault(ends.max_tokens)

        for place, answer in self._server.answers(Completion, path, bodies, fault, lost):
            choice = answer.choices[0]
            logprobs = tuple(choice.logprobs.token_logprobs) if choice.logprobs else None
            if "logprobs" in bodies[place] and len(logprobs or ()) != answer.num_tokens:
                raise ServerError(
                    f"{self._options.base_url}: {answer.num_tokens} tokens came with {len(logprobs or ())} "
                    "log-probabilities; do without them"
                )
            self.answers += 1
            self.bad_ends += ends.are_broken_by(answer)
            text = choice.text or choice.message.content or ""
            yield place, Reply(text, answer.num_tokens, choice.finish_reason or "none", logprobs)
        self._warn()

    def _warn(self) -> None:
        """Warns once that responses end badly."""
        if not self._warned and self.bad_ends and self.bad_ends >= _WARN_FROM * self.answers:
            self._warned = True
            self._note(
                f"{self._options.base_url}: {self.bad_ends} of {self.answers} responses ended badly (at no stop token, "
                "short of max_tokens, cut off, or with tokens outside the vocabulary); compare the server's model and "
                "settings with yours"
            )


def _seed(key: int) -> int:
    return key & _SEED_BITS
