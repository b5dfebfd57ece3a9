"""Options of the distribution that responses are sampled from."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from lockstep.config.section import Section, rule
from lockstep.core.types import SamplingParams


class ResponseEnd(Section):
    """Options that end a response."""

    max_tokens: PositiveInt = Field(description="maximum tokens per response")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description=(
            "texts that end a response, in addition to the model's stop tokens; they stay in the "
            "response"
        ),
    )


class TokenFilters(Section):
    """A temperature, and filters of unlikely tokens."""

    temperature: NonNegativeFloat = Field(default=1.0, description="0: greedy")
    top_k: Annotated[NonNegativeInt, BeforeValidator(lambda given: 0 if given == -1 else given)] = (
        Field(default=0, description="0 or -1: all")
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=1.0,
        description=(
            "sample from the smallest set of likeliest tokens with this total probability; 1: all"
        ),
    )
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        default=0.0,
        description=(
            "keep only tokens at least this fraction as likely as the likeliest, before top_k and "
            "top_p"
        ),
    )

    @rule
    def _greedy_takes_the_likeliest(self) -> None:
        if self.temperature == 0 and (self.top_k or self.top_p < 1 or self.min_p):
            raise ValueError(
                "temperature 0 is greedy, so leave top_k, top_p and min_p at 0, 1 and 0"
            )


class TokenPenalties(Section):
    """Penalties on tokens that already occur in the prompt or the response."""

    repetition_penalty: PositiveFloat = Field(
        default=1.0,
        description=(
            "divides positive logits of tokens in prompt or response, multiplies negative ones; "
            "1: none"
        ),
    )
    presence_penalty: float = Field(
        default=0.0, description="subtracted from logits of tokens in the response"
    )
    frequency_penalty: float = Field(
        default=0.0,
        description=("subtracted from a token's logit once per occurrence in the response"),
    )


class TokenDistribution(TokenPenalties, TokenFilters):
    """A distribution that tokens are drawn from."""

    def of_length(self, max_tokens: int) -> SamplingParams:
        """The same distribution without stop tokens or stop strings: responses end at
        `max_tokens`.
        """
        return SamplingParams(
            max_tokens, **{name: getattr(self, name) for name in TokenDistribution.model_fields}
        )


class Sampling(TokenDistribution, ResponseEnd):
    """The distribution that responses are sampled from."""

    def params(self, stop_token_ids: tuple[int, ...] = ()) -> SamplingParams:
        """The sampling parameters for a sampler, with the model's stop tokens."""
        return replace(
            self.of_length(self.max_tokens), stop_token_ids=stop_token_ids, stop=self.stop
        )


class RepeatedSampling(Sampling):
    """A sampling distribution, and the number of responses per question for validation and eval."""

    num_samples: PositiveInt = Field(default=1, description="responses per question")
    k: tuple[PositiveInt, ...] | None = Field(
        default=None,
        description=(
            "values of k for pass@k and maj@k, in addition to 1; null: 4, 16, … and num_samples"
        ),
    )

    @property
    def ks(self) -> tuple[int, ...]:
        """The values of k for pass@k and maj@k, ascending from 1."""
        if self.k is not None:
            return tuple(sorted({1, *self.k}))
        powers = itertools.takewhile(
            lambda power: power < self.num_samples, (4**i for i in itertools.count())
        )
        return (*powers, self.num_samples)

    @rule
    def _samples_differ_and_suffice(self) -> None:
        if self.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                "temperature 0 gives the same response every time, so num_samples must be 1"
            )
        if self.ks[-1] > self.num_samples:
            raise ValueError(
                f"k is {self.ks[-1]}, but each question has only num_samples={self.num_samples} "
                "responses"
            )
