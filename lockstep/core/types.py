"""Types that the whole package shares: sampling parameters, requests, responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

HeadKind = Literal["logits", "value", "reward"]
"""Output of a model: log-probabilities of tokens, state values, or a score per sequence.

A value belongs to the state before a token. A reward model's head is a critic's without the bias,
which pairs could not train.
"""

ValuePositions = Literal["all", "masked", "final"]
"""Values of a critic: for all tokens, for masked tokens, or only after each sequence.

The first two are values before the tokens, and also include the value after each sequence.
"""

BaselineKind = Literal["mean", "leave_one_out", "none"]
"""Baseline that is subtracted from a reward: the group's mean, the others' mean, or none."""

ScaleRewards = Literal["group", "others", "batch", "none"]
"""Standard deviation that divides the advantage: the group's, the others', the step's, or none."""

LossMean = Literal["tokens", "responses", "constant"]
"""Mean of a loss: over all tokens; over responses, of token means; or of sums / fixed length."""

KLEstimator = Literal["k2", "k3"]
"""Formula of the KL in a policy's loss, see `objectives.divergence`."""

DivergenceKind = Literal["forward", "reverse", "mixed", "jsd"]
"""Divergence between a student and its teacher."""

PreferenceLoss = Literal["dpo", "robust", "scale", "ipo", "rpo_sq", "rpo_bwd_kl", "rpo_fwd_kl"]
"""Loss of a pair of answers; see `lockstep.objectives.preference`."""

PhaseTimer = Callable[[str], AbstractContextManager[None]]
"""A context that names and times its `with` block, for progress and timings."""


def skip_timing(name: str) -> AbstractContextManager[None]:
    """A phase that is not timed or displayed."""
    return nullcontext()


@dataclass(frozen=True)
class SamplingParams:
    """The distribution that responses are sampled from, and when they stop.

    Attributes:
        max_tokens: Longest response, in tokens.
        temperature: Divides the logits; 0 means greedy, and log-probabilities are then those of
            temperature 1.
        top_k: Keep the k likeliest tokens, and those as likely as the k-th; 0 keeps all.
        top_p: Keep the fewest likeliest tokens whose probability reaches this, and those as likely
            as the last of them; 1 keeps all.
        stop_token_ids: A response ends with the first of these, and includes it.
        min_p: Keep tokens whose probability, at this temperature, is at least this times that of
            the likeliest; 0 keeps all. Top-k and top-p choose from the remaining tokens.
        repetition_penalty: For tokens already in the prompt or response, divides positive logits
            and multiplies negative ones, before the temperature; 1 is neutral.
        presence_penalty: Subtracted from the logits of tokens already in the response.
        frequency_penalty: Subtracted from them once per occurrence.
        stop: A response ends with the token that completes one of these strings in its text, and
            includes it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()

    def drop_stop(self, tokens: list[int]) -> list[int]:
        """Returns a response's tokens without the stop token at the end, if any."""
        if tokens and tokens[-1] in self.stop_token_ids:
            return tokens[:-1]
        return tokens

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def divisor(self) -> float:
        """Divisor of the logits: the temperature, or 1 if greedy."""
        return self.temperature or 1.0

    @property
    def full_support(self) -> bool:
        """True if every token can be sampled: no filter removes any."""
        return self.greedy or (self.top_k == 0 and self.top_p == 1.0 and self.min_p == 0.0)

    @property
    def filters_and_penalties(self) -> dict[str, float]:
        """The filters and penalties that are not neutral, by name."""
        names = (
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        changed = {name: getattr(self, name) for name in names}
        return {
            name: value for name, value in changed.items() if value != getattr(SamplingParams, name)
        }

    @property
    def counts_response(self) -> bool:
        """True if token counts within the response matter, separate from the prompt."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def penalizes(self) -> bool:
        """True if earlier tokens change a token's logits."""
        return self.repetition_penalty != 1.0 or self.counts_response

    @property
    def needs_logits(self) -> bool:
        """True if scoring a token needs its full row of logits, due to a filter or a penalty."""
        return self.penalizes or not self.full_support

    @property
    def without_penalties(self) -> SamplingParams:
        """The same parameters without penalties."""
        return replace(self, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)

    @property
    def unshaped(self) -> bool:
        """True if log-probabilities are the model's own, at temperature 1.

        Greedy sampling without penalties counts as well.
        """
        return self.temperature in (0.0, 1.0) and not self.needs_logits


@dataclass(frozen=True)
class Prompt:
    """A prompt for a sampler, with its data row unchanged.

    Attributes:
        id: Identifies the row across runs, `file:line`.
        text: The prompt as the model reads it, after the template.
        tokens: Its token ids.
        row: The data row as parsed from JSON.
        messages: The conversation that the text renders; None for plain text.
    """

    id: str
    text: str
    tokens: tuple[int, ...]
    row: Mapping[str, Any]
    messages: tuple[Mapping[str, Any], ...] | None = None

    @property
    def conversation(self) -> tuple[Mapping[str, Any], ...]:
        """The prompt as a conversation; plain text becomes a user message."""
        return self.messages or ({"role": "user", "content": self.text.strip()},)


@dataclass(frozen=True)
class Request:
    """A request for one response.

    Attributes:
        tokens: Token ids of the prompt.
        key: Key of its random numbers, see `lockstep.core.keyed`.
        continues: Whether a later prompt will begin with this prompt and its response, as in an
            episode.
    """

    tokens: tuple[int, ...]
    key: int
    continues: bool = False


@dataclass(frozen=True)
class ServerReply:
    """A server's response, as text.

    Attributes:
        text: The response, without its stop token.
        num_tokens: Number of sampled tokens, including the stop token.
        finish_reason: `stop`, or `length` if a limit cut the response off; a server may have
            others.
    """

    text: str
    num_tokens: int
    finish_reason: str
