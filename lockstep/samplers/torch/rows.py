"""Requests in the scheduler, and the tensors of running requests.

Letters: S slots for rows, R running rows, K tokens of a response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lockstep.core import keyed
from lockstep.core.types import Request, SamplingParams

_FIRST = 64
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
    """A prompt that one or more rows share; keeps its blocks until the last row begins.

    Attributes:
        tokens: The tokens.
        waiting: Number of rows that have not begun.
        blocks: Its KV blocks; empty: not computed yet.
        known: Number of its tokens found in the prefix cache.
        logits: Logits of the first token after it [V], from the pass that computes it.
    """

    tokens: tuple[int, ...]
    waiting: int = 0
    blocks: list[int] = field(default_factory=list)
    known: int = 0
    logits: Tensor | None = None


@dataclass(eq=False)
class ScheduledRow:
    """A waiting or running request.

    Attributes:
        number: Number of the request.
        request: The request.
        sampling: Sampling distribution.
        room: Maximum tokens of its response.
        prompt: The request's tokens and, if the row was preempted, those of its response so far.
        so_far: Its response at the last preemption.
        place: Its slot; −1 while it waits.
        began: Number of earlier starts, counted when it last began.
    """

    number: int
    request: Request
    sampling: SamplingParams
    room: int
    prompt: SharedPrompt
    so_far: Response
    place: int = -1
    began: int = 0


class RowStates:
    """The state of running rows by slot, as tensors.

    Attributes:
        count: Number of slots.
        token_S: Newest token of each row, whose keys and values are not computed yet.
        filled_S: Number of tokens whose keys and values are computed.
        made_S: Number of response tokens.
        room_S: Maximum number of response tokens.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.count = count
        self._device = device
        self.token_S, self.filled_S, self.made_S, self.room_S, self._key_S = self._int_zeros(
            5, count
        ).unbind()
        self._token_SK = self._int_zeros(count, _FIRST)
        self._logprob_SK = torch.zeros(count, _FIRST, device=device)
        self._uniform_SK = torch.zeros(count, _FIRST, dtype=torch.float64, device=device)

    def begin_rows(self, rows: Sequence[ScheduledRow]) -> None:
        """Adds rows in their slots."""
        place = self._int_tensor([row.place for row in rows])
        self.filled_S[place] = self._int_tensor([len(row.prompt.tokens) for row in rows])
        self.made_S[place] = self._int_tensor([len(row.so_far.tokens) for row in rows])
        self.room_S[place] = self._int_tensor([row.room for row in rows])
        self._key_S[place] = self._int_tensor([row.request.key for row in rows])
        self._uniform_SK[place] = keyed.draw_uniforms(self._key_S[place], self._column_indices(0))
        for row in (row for row in rows if row.so_far.tokens):
            made = len(row.so_far.tokens)
            self._ensure_capacity(made)
            self._token_SK[row.place, :made] = self._int_tensor(row.so_far.tokens)
            self._logprob_SK[row.place, :made] = torch.tensor(
                row.so_far.logprobs, device=self._device
            )

    def next_uniforms(self, place_R: Tensor) -> Tensor:
        """The random number of the next token of each row, float64 [R]."""
        made_R = self.made_S[place_R]
        self._ensure_capacity(int(made_R.max()) + 1)
        return self._uniform_SK[place_R, made_R]

    def append_tokens(self, place_R: Tensor, token_R: Tensor, logprob_R: Tensor) -> None:
        """Appends a token to each row's response."""
        made_R = self.made_S[place_R]
        self._token_SK[place_R, made_R] = token_R
        self._logprob_SK[place_R, made_R] = logprob_R
        self.token_S[place_R] = token_R
        self.made_S[place_R] = made_R + 1

    def newest_tokens(self, place_R: Tensor, count: int) -> list[list[int]]:
        """The newest tokens of each response, at most `count`."""
        made_R = self.made_S[place_R]
        column_RK = made_R[:, None] + torch.arange(-count, 0, device=self._device)
        tokens = self._token_SK[place_R[:, None], column_RK.clamp(min=0)].tolist()
        return [
            some[max(0, count - made) :] for some, made in zip(tokens, made_R.tolist(), strict=True)
        ]

    def build_responses(
        self, rows: Sequence[ScheduledRow], stopped: Sequence[bool]
    ) -> list[Response]:
        """The rows' responses so far; `stopped` tells which ended at a stop token or string."""
        place = self._int_tensor([row.place for row in rows])
        made = self.made_S[place].tolist()
        most = max(made)
        tokens = self._token_SK[place, :most].tolist()
        logprobs = self._logprob_SK[place, :most].tolist()
        columns = zip(tokens, logprobs, made, stopped, strict=True)
        return [Response(some[:length], own[:length], end) for some, own, length, end in columns]

    def _ensure_capacity(self, tokens: int) -> None:
        held = self._token_SK.shape[1]
        if tokens > held:
            more = max(tokens, 2 * held) - held
            self._token_SK = torch.cat([self._token_SK, self._int_zeros(self.count, more)], 1)
            self._logprob_SK = torch.cat(
                [self._logprob_SK, self._logprob_SK.new_zeros(self.count, more)], 1
            )
            self._uniform_SK = torch.cat(
                [self._uniform_SK, keyed.draw_uniforms(self._key_S, self._column_indices(held))], 1
            )

    def _column_indices(self, start: int) -> Tensor:
        """Indices of the tokens in a response's capacity, from `start` on."""
        return torch.arange(start, self._token_SK.shape[1], device=self._device)

    def _int_zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.int64, device=self._device)

    def _int_tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
