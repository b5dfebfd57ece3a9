"""A loss is a value: a frozen dataclass that any process can be sent and any pipeline stage can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

from torch import Tensor

from lockstep.batch import Batch
from lockstep.metrics import Metrics

Denominator = Literal["tokens", "rows", "pairs"]


@dataclass(frozen=True)
class Outputs:
    """Outputs of a learner's head for each own token; fp32, the column of the other head is None.

    Attributes:
        logprob: log π(x_t | x_<t) under the batch's sampling distribution, nats [N]; 0 where the mask is off.
        entropy: Entropy of that distribution at each token, nats [N]; 0 where the mask is off.
        value: V(x_<t) [N]; 0 at the first token of a sequence.
        final_value: V after the last token of each sequence [B].
        top_token: The `batch.top_k` likeliest tokens in the place of each, int64 [N, K]; 0 where the mask is off, as
            below.
        top_logprob: log π of these, or of those in the batch's column `top_token`, nats [N, K].
    """

    logprob: Tensor | None = None
    entropy: Tensor | None = None
    value: Tensor | None = None
    final_value: Tensor | None = None
    top_token: Tensor | None = None
    top_logprob: Tensor | None = None


class Loss(Protocol):
    """Called by a learner on each micro-batch; returns the *sum* over active tokens, rows or pairs, and metrics.

    The learner divides the gradient once, by the count of what is active over all micro-batches and ranks.
    """

    @property
    def denominator(self) -> Denominator: ...

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]: ...


def active(batch: Batch, denominator: Denominator) -> Tensor:
    """The number of trainable tokens, or of sequences that have one, or of pairs in which both have.

    Returns:
        A 0-d tensor on the batch's device.
    """
    match denominator:
        case "tokens":
            return batch.mask.sum()
        case "rows":
            return _active_rows(batch).sum()
        case "pairs":
            return active_pairs(batch).sum()
        case _:
            assert_never(denominator)


def split_pairs(batch: Batch, column_B: Tensor) -> tuple[Tensor, Tensor]:
    """A per-sequence column of the first and of the second sequence of each pair, [P] each.

    Raises:
        ValueError: The batch is not one of pairs, so that a learner may have torn them apart.
    """
    if batch.group_size != 2:
        raise ValueError(f"pairs are wanted, but the batch has groups of {batch.group_size}; set its group_size to 2")
    return column_B[0::2], column_B[1::2]


def active_pairs(batch: Batch) -> Tensor:
    """True for each pair of which both sequences have a trainable token, bool [P]."""
    first_P, second_P = split_pairs(batch, _active_rows(batch))
    return first_P & second_P


def _active_rows(batch: Batch) -> Tensor:
    """True for each sequence that has a trainable token, bool [B]."""
    return batch.per_sample(batch.mask.float()) > 0
