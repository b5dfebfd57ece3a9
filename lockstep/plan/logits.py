"""The estimated memory of logits that are materialized for all tokens of a pass."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.plan.sizes import FP32, INT64
from lockstep.types import SamplingParams

_PAIR = 5 * INT64 + FP32
"""Bytes that penalties take per pair of a token and an earlier one of its sequence: indices, and a number in fp32."""


@dataclass(frozen=True)
class WholeLogits:
    """Logits of a pass, which are materialized where filters or penalties shape the distribution.

    Attributes:
        sampling: The distribution.
        count: Number of logits on this rank; 0: they are not materialized.
        item: Bytes of one in matrix products.
        pairs: The most pairs of a token and an earlier one of its sequence.
    """

    sampling: SamplingParams
    count: int
    item: int
    pairs: int

    @property
    def saved_tensors(self) -> int:
        """Bytes kept for the backward pass: the logits; under penalties, in fp32 and with the pairs of tokens."""
        return self.count * FP32 + self.pairs * _PAIR if self.sampling.penalizes else self.count * self.item

    @property
    def shaping(self) -> int:
        """Further bytes while logits are shaped: a copy before penalties, or after min-p for top-k and top-p."""
        left = {"top_k", "top_p"} & self.sampling.filters_and_penalties.keys() if self.sampling.min_p else ()
        item = FP32 if self.sampling.penalizes else self.item
        return self.count * max(self.item if self.sampling.penalizes else 0, item + 1 if left else 0)

    @property
    def gradient(self) -> int:
        """Bytes of the gradient of the logits: under penalties in fp32, and a cast to the type of products."""
        cast = 0 if self.item == FP32 else self.item
        return self.count * (FP32 + cast if self.sampling.penalizes else self.item)
