"""A running episode, and the batch of finished episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lockstep.config import user_code
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Prompt, Request, SamplingParams
from lockstep.data.thoughts import opening_mark

EpisodeObservation = str | Sequence[Mapping[str, str]]
"""The text that the policy reads next, or the messages of its tool calls."""

PART = "reward/"
"""Prefix of the columns with the parts of a summed reward."""
UNKNOWN = float("nan")
"""The reward of an episode without a verdict."""


@dataclass
class EpisodeRecord:
    """An episode so far: pieces of its tokens, its responses and observations."""

    number: int
    prompt: Prompt
    request: Request
    seed: int
    tokens: list[Tensor]
    mask: list[Tensor]
    logprobs: list[Tensor]
    responses: list[str] = field(default_factory=list)
    observations: list[EpisodeObservation] = field(default_factory=list)
    reward: float | None = 0.0
    lowest: float = 0.0
    truncated: bool = False
    ended: bool = False
    done: bool = False
    fault: str | None = None
    tool_calls: int = 0
    malformed_calls: int = 0
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def is_cut_off(self) -> bool:
        """True if a limit ended the episode before its environment did."""
        return self.truncated and not self.done

    @property
    def token_count(self) -> int:
        """Number of tokens so far."""
        return sum(map(len, self.tokens))

    @property
    def environment_message(self) -> dict[str, Any]:
        """The message to the environment process."""
        return {
            "episode": self.number,
            "opened": opening_mark(self.prompt.text),
            "row": dict(self.prompt.row),
            "seed": self.seed,
            "responses": self.responses,
            "observations": self.observations,
        }

    def next_request(self) -> Request:
        """The request for the next turn; each turn has its own random numbers."""
        turn = len(self.responses)
        if turn:
            key = keyed.hash_key(self.request.key, "turn", turn)
        else:
            key = self.request.key
        return Request(tuple(torch.cat(self.tokens).tolist()), key, continues=True)

    def append_tokens(self, tokens_T: Tensor, logprob_T: Tensor | None = None) -> None:
        """Appends a response with its log-probabilities, or an observation."""
        self.tokens.append(tokens_T)
        self.mask.append(torch.full(tokens_T.shape, logprob_T is not None))
        self.logprobs.append(torch.zeros(tokens_T.shape) if logprob_T is None else logprob_T)

    def take_reply(self, reply: dict[str, Any]) -> None:
        """Applies the reply of the environment process."""
        if "wrong" in reply:
            self.mark_failed(reply["wrong"])
            return
        self.observations.append(reply["observation"])
        self.tool_calls += reply["calls"]
        self.malformed_calls += reply["malformed"]
        for name, part in reply["parts"].items():
            self.parts[name] = self.parts.get(name, 0.0) + (UNKNOWN if part is None else part)
        reward: float | None = reply["reward"]
        if self.reward is None or reward is None:
            self.reward = None
        else:
            self.reward = self.reward + reward
        self.lowest = min(self.lowest, reward or 0.0)
        try:
            user_code.read_reward(self.reward)
        except ValueError:
            self.mark_failed(f"returned rewards whose sum {self.reward:g} overflows fp32")
        self.done = reply["done"]
        self.ended |= self.done

    def mark_failed(self, why: str) -> None:
        self.fault = why
        self.ended = True
        self.reward = None


def begin_episode(number: int, prompt: Prompt, request: Request, seed: int) -> EpisodeRecord:
    """Creates an episode that holds only its prompt."""
    tokens = torch.tensor(request.tokens, dtype=torch.int64)
    mask = torch.zeros_like(tokens).bool()
    logprobs = torch.zeros(len(tokens))
    return EpisodeRecord(number, prompt, request, seed, [tokens], [mask], [logprobs])


def count_calls(episodes: Sequence[EpisodeRecord]) -> dict[str, Tensor]:
    """Counts of tool calls and of malformed calls, int64 [B] each."""
    return {
        "tool_calls": torch.tensor([episode.tool_calls for episode in episodes]),
        "malformed_calls": torch.tensor([episode.malformed_calls for episode in episodes]),
    }


def make_part_columns(episodes: Sequence[EpisodeRecord]) -> dict[str, Tensor]:
    """The environment's named rewards, fp32 [B] each; NaN for a failure or no verdict."""
    rewards = [{} if episode.fault is not None else episode.parts for episode in episodes]
    columns = dict[str, Tensor]()
    for name in sorted(set(chain.from_iterable(episode.parts for episode in episodes))):
        columns[f"{PART}{name}"] = torch.tensor([parts.get(name, UNKNOWN) for parts in rewards])
    return columns


def make_batch(
    episodes: Sequence[EpisodeRecord],
    versions: Tensor,
    sampling: SamplingParams,
    rewards: Sequence[float],
) -> Batch:
    """Builds the batch of finished episodes; `rewards` has one number per episode."""
    return Batch(
        torch.cat([torch.cat(episode.tokens) for episode in episodes]),
        torch.tensor([episode.token_count for episode in episodes]),
        {
            "mask": torch.cat([torch.cat(episode.mask) for episode in episodes]),
            "sampler_logprob": torch.cat([torch.cat(episode.logprobs) for episode in episodes]),
        },
        {
            "truncated": torch.tensor([episode.truncated for episode in episodes]),
            "version": versions,
            "environment_reward": torch.tensor(rewards),
            "environment_fault": torch.tensor([episode.fault is not None for episode in episodes]),
            "turns": torch.tensor([len(episode.responses) for episode in episodes]),
        },
        sampling,
    )
