"""The memory of logits that exist whole, on paper."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.plan.sizes import FP32, INT64
from lockstep.types import SamplingParams

_PAIR = 5 * INT64 + FP32
"""Bytes of a token and one before it, for penalties: where they are, and what the backward pass is to know."""


@dataclass(frozen=True)
class WholeLogits:
    """Logits of a pass, which exist whole where more than the temperature shapes the distribution.

    Attributes:
        sampling: The distribution.
        count: Number of logits on this rank; 0: they are never whole.
        item: Bytes of one in matrix products.
        pairs: The most pairs of a token and one before it in its sequence.
    """

    sampling: SamplingParams
    count: int
    item: int
    pairs: int

    @property
    def saved_tensors(self) -> int:
        """Bytes that wait for the backward pass; with penalties in fp32, and with the tokens before each token."""
        return self.count * FP32 + self.pairs * _PAIR if self.sampling.penalizes else self.count * self.item

    @property
    def shaping(self) -> int:
        """Bytes besides those while they are shaped: logits before penalties, or those that min-p leaves to others."""
        left = {"top_k", "top_p"} & self.sampling.filters_and_penalties.keys() if self.sampling.min_p else ()
        item = FP32 if self.sampling.penalizes else self.item
        return self.count * max(self.item if self.sampling.penalizes else 0, item + 1 if left else 0)

    @property
    def gradient(self) -> int:
        """Bytes of their gradient; that of penalties is of fp32, and cast."""
        cast = 0 if self.item == FP32 else self.item
        return self.count * (FP32 + cast if self.sampling.penalizes else self.item)
