"""Episodes of agents at the endpoint: the recipe's distribution and limits hold for requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.core.types import SamplingParams
from lockstep.models.source import ModelSource
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.rollouts.turns import TurnListener
from lockstep.serve.options import EndpointSection
from lockstep.serve.protocol import DrawFields
from lockstep.serve.refusals import RequestRefused

if TYPE_CHECKING:
    from lockstep.serve.server import PolicyServer

MODEL = "policy"
"""The name that agents give the policy."""


@dataclass
class EpisodeRules:
    """The distribution and the limits of episodes, which hold instead of what agents request.

    Attributes:
        sampling: The recipe's distribution; `max_tokens` is the longest response.
        max_turns: Most responses of an episode.
        max_tokens: Most tokens of a prompt and its response.
        cut_off: Sessions with a request that was refused by a limit.
    """

    sampling: SamplingParams
    max_turns: int
    max_tokens: int
    cut_off: set[str] = field(default_factory=set[str])
    _turns: Counter[str] = field(default_factory=Counter[str])

    def adapt_fields(self, session: str, prompt_tokens: int, fields: DrawFields) -> DrawFields:
        """The fields of a request by the recipe; only shorter lengths and stops are its own.

        Raises:
            RequestRefused: The episode is at a limit.
        """
        self._turns[session] += fields.choices
        if self._turns[session] > self.max_turns:
            self._refuse(session, f"{self.max_turns} responses", "max_turns")
        own = self.sampling
        if prompt_tokens + own.max_tokens > self.max_tokens:
            self._refuse(session, f"{self.max_tokens} tokens", "max_tokens")
        stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
        return fields.model_copy(
            update={
                "temperature": own.temperature,
                "top_p": own.top_p,
                "top_k": own.top_k,
                "min_p": own.min_p,
                "presence_penalty": None,
                "frequency_penalty": None,
                "repetition_penalty": None,
                "stop": [*stop, *own.stop],
                "stop_token_ids": sorted({*(fields.stop_token_ids or ()), *own.stop_token_ids}),
                "ignore_eos": False,
                "seed": None,
                "max_tokens": min(fields.max_tokens or own.max_tokens, own.max_tokens),
            }
        )

    def _refuse(self, session: str, limit: str, option: str) -> None:
        self.cut_off.add(session)
        raise RequestRefused(
            400, f"this episode is at its limit of {limit} (environment.{option}); answer now"
        )


class EpisodeEndpoint:
    """Implements `rollouts.agents.EpisodeServer` by a policy server.

    Args:
        server: The server.
        rules: The limits.
    """

    def __init__(self, server: PolicyServer, rules: EpisodeRules) -> None:
        self.base_url = server.url
        self.model = server.model
        self._server = server
        self._rules = rules
        self._keys = dict[str, str]()

    def open_session(self, name: str) -> str:
        """See `EpisodeServer`."""
        self._keys[name] = self._server.open_session(name)
        return self._keys[name]

    def close_session(self, name: str) -> bool:
        """See `EpisodeServer`."""
        self._server.close_session(self._keys.pop(name))
        if self._server.failure is not None:
            raise self._server.failure
        return name in self._rules.cut_off


@contextmanager
def open_episode_server(
    serve: type[PolicyServer],
    source: ModelSource,
    max_turns: int,
    max_tokens: int,
    engine: SamplerSession,
    sampling: SamplingParams,
    on_turn: TurnListener,
) -> Iterator[EpisodeEndpoint]:
    """Opens an endpoint for the episodes of one rollout, on a free port of this machine.

    Args:
        serve: The server.
        source: Tokenizer and chat template of the model.
        max_turns: Most responses of an episode.
        max_tokens: Most tokens of a prompt and its response.
        engine: Open session that samples.
        sampling: The distribution of each response.
        on_turn: Receives each turn before its answer is sent.
    """
    rules = EpisodeRules(sampling, max_turns, max_tokens)
    with serve(
        engine.sampler,
        source,
        on_turn=on_turn,
        options=EndpointSection(model_name=MODEL),
        adapt=rules.adapt_fields,
    ) as server:
        yield EpisodeEndpoint(server, rules)
