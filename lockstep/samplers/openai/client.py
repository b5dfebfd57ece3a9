"""A client for OpenAI-compatible servers: vLLM, SGLang, TensorRT-LLM's `trtllm-serve`, and others.

The server already runs with its own weights and only receives requests. The client checks the kind
of server and its options as far as the responses allow (docs/guides/servers.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from lockstep import config
from lockstep.core.types import SamplingParams, ServerReply
from lockstep.samplers.openai.dialects import (
    DIALECTS,
    ChatReply,
    ModelList,
    ServerDialect,
)
from lockstep.servers.json_server import JsonServer, LostRequestHandler, ServerAddress, ServerError

_SHOWN_MODELS = 5

_SEED_BITS = 2**63 - 1
"""Mask for seeds that every server accepts: nonnegative, in a signed 64-bit integer."""


class OpenAIClient:
    """A client that requests answers to conversations from a server.

    Args:
        options: Address of the server, the model, and limits of requests.
        timeout_s: Timeout after which a request is retried.
        note: Shows the user a line.

    Raises:
        ServerError: If the server cannot be reached, refuses the key, or does not serve the model.
    """

    def __init__(
        self,
        options: config.OpenAI,
        timeout_s: float,
        note: Callable[[str], object] = warnings.warn,
    ) -> None:
        address = ServerAddress(
            options.base_url,
            "base_url",
            options.api_key_env,
            options.max_concurrency,
            options.max_retries,
        )
        self._server = JsonServer(address, timeout_s, note)
        self._options = options
        with self._server.open_connection() as (portal, client):
            models = portal.call(self._server.request_reply, client, ModelList, "/models").data
        served = {model.id: model for model in models}
        if self._options.model not in served:
            others = list(served)[:_SHOWN_MODELS]
            if len(served) > _SHOWN_MODELS:
                others.append(f"and {len(served) - _SHOWN_MODELS:,} more")
            raise ServerError(
                f"{self._options.base_url}: serves {', '.join(others) or 'no model'}, not "
                f"{self._options.model}; correct the option model"
            )
        self._model = served[self._options.model]
        owner = self._model.owned_by
        if owner in DIALECTS:
            self._dialect = DIALECTS[owner]
        else:
            self._dialect = ServerDialect(f"a server called {owner!r}")
            note(
                f"{options.base_url}: the server calls itself {owner!r}, which is unknown; it "
                "receives only standard OpenAI options, and uses its own stop tokens"
            )

    def require_supported(self, sampling: SamplingParams) -> None:
        """Raises ValueError if the server does not support a distribution."""
        self._dialect.request_options(sampling)

    def chat(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        sampling: SamplingParams,
        keys: Sequence[int],
        lost: LostRequestHandler | None = None,
    ) -> Iterator[tuple[int, ServerReply]]:
        """Continues conversations by the server's chat template, up to a stop token of the model.

        Args:
            conversations: Messages with `role` and `content`.
            sampling: The sampling distribution.
            keys: Keys of the random numbers, one per conversation.
            lost: Called with each request that failed after all retries; None: raise the first
                failure.

        Returns:
            Indices into `conversations` and their replies, as they arrive.

        Raises:
            ValueError: If the server lacks a requested option.
            ServerError: While iterating, if the server fails after all retries.
        """
        options = {"model": self._model.id, **self._dialect.request_options(sampling)}
        options |= {"max_completion_tokens": sampling.max_tokens}
        bodies = list[dict[str, object]]()
        for messages, key in zip(conversations, keys, strict=True):
            bodies.append(
                options | {"messages": list(map(dict, messages)), "seed": key & _SEED_BITS}
            )
        return self._send_requests(bodies, sampling.max_tokens, lost)

    def _send_requests(
        self,
        bodies: Sequence[Mapping[str, object]],
        max_tokens: int,
        lost: LostRequestHandler | None,
    ) -> Iterator[tuple[int, ServerReply]]:
        """Sends all requests."""

        def describe_fault(index: int, answer: ChatReply) -> str | None:
            return answer.describe_fault(max_tokens)

        for index, answer in self._server.request_all(
            ChatReply, "/chat/completions", bodies, describe_fault, lost
        ):
            choice = answer.choices[0]
            text = choice.message.content or ""
            yield (
                index,
                ServerReply(text, answer.num_tokens, choice.finish_reason or "none"),
            )
