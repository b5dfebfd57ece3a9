"""Waiting and running sequences, and the tensors of running ones.

Letters: S slots, R running sequences, K tokens of a response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lockstep.core import keyed
from lockstep.core.types import Request, SamplingParams

_INITIAL_CAPACITY = 64
"""Initial capacity for a response's tokens."""


class NotFinite(Exception):
    """Logits for a token of a request's response are NaN or infinite."""

    def __init__(self, number: int, token: int) -> None:
        super().__init__(number, token)
        self.number = number
        self.token = token


@dataclass(frozen=True)
class Response:
    """A finished response.

    Attributes:
        tokens: Tokens, including the stop token.
        logprobs: Log-probabilities of the tokens, nats.
        stopped: True if a stop token ended it; False if its limit or the context did.
    """

    tokens: list[int]
    logprobs: list[float]
    stopped: bool


@dataclass(eq=False)
class SharedPrompt:
    """A prompt that sequences share; keeps its blocks until the last of them starts to decode.

    Attributes:
        tokens: The tokens.
        waiting: Number of sequences that wait for it.
        blocks: Its KV blocks; empty: not computed yet.
        num_cached: Number of its tokens found in the prefix cache.
        logits: Logits of the first token after it [V], from the pass that computes it.
    """

    tokens: tuple[int, ...]
    waiting: int = 0
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    logits: Tensor | None = None


@dataclass(eq=False)
class ScheduledSequence:
    """A waiting or running request, with its response so far.

    Attributes:
        number: Number of the request.
        request: The request.
        sampling: Sampling distribution.
        max_tokens: Maximum tokens of its response.
        prompt: The request's tokens and, after a preemption, those of its response so far.
        partial: Its response at the last preemption.
        slot: Its slot; −1 while it waits.
        start_number: Number of sequences that started before it, each start counted.
    """

    number: int
    request: Request
    sampling: SamplingParams
    max_tokens: int
    prompt: SharedPrompt
    partial: Response
    slot: int = -1
    start_number: int = 0


class SequenceStates:
    """The state of running sequences by slot, as tensors.

    Attributes:
        count: Number of slots.
        token_S: Newest token of each sequence, whose keys and values are not computed yet.
        computed_S: Number of tokens whose keys and values are computed.
        length_S: Number of response tokens.
        max_length_S: Maximum number of response tokens.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.count = count
        self._device = device
        self.token_S, self.computed_S, self.length_S, self.max_length_S, self._key_S = (
            self._int_zeros(5, count).unbind()
        )
        self._token_SK = self._int_zeros(count, _INITIAL_CAPACITY)
        self._logprob_SK = torch.zeros(count, _INITIAL_CAPACITY, device=device)
        self._uniform_SK = torch.zeros(count, _INITIAL_CAPACITY, dtype=torch.float64, device=device)

    def start_sequences(self, sequences: Sequence[ScheduledSequence]) -> None:
        """Sets the state of new sequences in their slots."""
        slot = self._int_tensor([one.slot for one in sequences])
        self.computed_S[slot] = self._int_tensor([len(one.prompt.tokens) for one in sequences])
        self.length_S[slot] = self._int_tensor([len(one.partial.tokens) for one in sequences])
        self.max_length_S[slot] = self._int_tensor([one.max_tokens for one in sequences])
        self._key_S[slot] = self._int_tensor([one.request.key for one in sequences])
        self._uniform_SK[slot] = keyed.draw_uniforms(self._key_S[slot], self._column_indices(0))
        for one in sequences:
            partial = one.partial
            length = len(partial.tokens)
            if length:
                self._ensure_capacity(length)
                self._token_SK[one.slot, :length] = self._int_tensor(partial.tokens)
                self._logprob_SK[one.slot, :length] = torch.tensor(
                    partial.logprobs, device=self._device
                )

    def next_uniforms(self, slot_R: Tensor) -> Tensor:
        """The random number of the next token of each sequence, float64 [R]."""
        length_R = self.length_S[slot_R]
        self._ensure_capacity(int(length_R.max()) + 1)
        return self._uniform_SK[slot_R, length_R]

    def append_tokens(self, slot_R: Tensor, token_R: Tensor, logprob_R: Tensor) -> None:
        """Appends a token to each sequence's response."""
        length_R = self.length_S[slot_R]
        self._token_SK[slot_R, length_R] = token_R
        self._logprob_SK[slot_R, length_R] = logprob_R
        self.token_S[slot_R] = token_R
        self.length_S[slot_R] = length_R + 1

    def newest_tokens(self, slot_R: Tensor, count: int) -> list[list[int]]:
        """The newest tokens of each response, at most `count`."""
        length_R = self.length_S[slot_R]
        column_RK = length_R[:, None] + torch.arange(-count, 0, device=self._device)
        tokens = self._token_SK[slot_R[:, None], column_RK.clamp(min=0)].tolist()
        pairs = zip(tokens, length_R.tolist(), strict=True)
        return [newest[max(0, count - length) :] for newest, length in pairs]

    def build_responses(
        self, sequences: Sequence[ScheduledSequence], stopped: Sequence[bool]
    ) -> list[Response]:
        """The sequences' responses so far; `stopped`: whether a stop token or string ended each."""
        slot = self._int_tensor([one.slot for one in sequences])
        lengths = self.length_S[slot].tolist()
        longest = max(lengths)
        tokens = self._token_SK[slot, :longest].tolist()
        logprobs = self._logprob_SK[slot, :longest].tolist()
        columns = zip(tokens, logprobs, lengths, stopped, strict=True)
        return [Response(some[:length], own[:length], stop) for some, own, length, stop in columns]

    def _ensure_capacity(self, tokens: int) -> None:
        capacity = self._token_SK.shape[1]
        if tokens > capacity:
            growth = max(tokens, 2 * capacity) - capacity
            self._token_SK = torch.cat([self._token_SK, self._int_zeros(self.count, growth)], 1)
            self._logprob_SK = torch.cat(
                [self._logprob_SK, self._logprob_SK.new_zeros(self.count, growth)], 1
            )
            uniforms = keyed.draw_uniforms(self._key_S, self._column_indices(capacity))
            self._uniform_SK = torch.cat([self._uniform_SK, uniforms], 1)

    def _column_indices(self, start: int) -> Tensor:
        """Indices of the tokens in a response's capacity, from `start` on."""
        return torch.arange(start, self._token_SK.shape[1], device=self._device)

    def _int_zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.int64, device=self._device)

    def _int_tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
