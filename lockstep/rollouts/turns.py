"""One finished response of a policy endpoint: the tokens it read and drew, and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "tool_calls"]
"""Reason why a response ended: a stop token or string, a limit, or a stop after calls of tools."""


@dataclass(frozen=True)
class Turn:
    """A finished response, exactly as the sampler read and drew it.

    Attributes:
        session: Session of the request: its `X-Session-ID`, or else the one of its key.
        request_id: Id of the response; several choices of one request have `ID-0`, `ID-1` and so
            on.
        prompt_token_ids: What the policy read.
        token_ids: What it drew, with the stop token.
        logprobs: Log-probability of each drawn token, nats: processed (temperature applied) and
            over the full vocabulary.
        finish_reason: Why the response ended.
        weight_version: Version of the weights that drew all its tokens.
        request: Body of the request.
        response: Body of the answer, with this choice only if the request has several.
    """

    session: str
    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: int
    request: Mapping[str, Any]
    response: Mapping[str, Any]


TurnListener = Callable[[Turn], object]
"""Called with each finished turn, before its answer is sent."""
