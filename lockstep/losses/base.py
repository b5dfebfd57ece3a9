"""The loss interface: a frozen dataclass that can be sent to any rank or pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, assert_never, get_args

from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.metrics import MetricReduction, Metrics
from lockstep.core.types import ValuePositions

Denominator = Literal["tokens", "rows", "pairs"]


@dataclass(frozen=True)
class Outputs:
    """Outputs of a learner's head, fp32, aligned with their tokens; other heads' columns are None.

    Attributes:
        logprob: log π(x_t | x_<t) under the batch's sampling distribution, nats [N]; 0 where the
            mask is off.
        entropy: Entropy of that distribution at each token, nats [N]; 0 where the mask is off. None
            if neither the batch nor the loss requests it.
        value: V(x_<t) [N]; 0 at the first token of a sequence, and at tokens whose value neither
            the batch nor the loss requests.
        final_value: V after the last token of each sequence [B].
        top_token: The `batch.top_k` likeliest tokens at each position, int64 [N, K]; 0 where the
            mask is off.
        top_logprob: log π of `top_token`, or of the tokens in the batch's column `top_token`, nats
            [N, K]; 0 where the mask is off.
        first_token: If the batch has `top_token`: the likeliest of all tokens at each position,
            int64 [N]; 0 where the mask is off.
    """

    logprob: Tensor | None = None
    entropy: Tensor | None = None
    value: Tensor | None = None
    final_value: Tensor | None = None
    top_token: Tensor | None = None
    top_logprob: Tensor | None = None
    first_token: Tensor | None = None


class Loss(Protocol):
    """Returns the *sum* of the loss over a micro-batch's active items, and metrics.

    The learner calls it on each micro-batch and divides the gradient once, by the number of active
    tokens, rows or pairs (the denominator) over all micro-batches and ranks. A loss with
    `reads_entropy = False` gets no entropies; one with `reads_values = "masked"` or "final" gets
    only those `ValuePositions`. Outputs that no loss reads are not computed.
    """

    @property
    def denominator(self) -> Denominator: ...

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]: ...


def require_inputs(batch: object, loss: object) -> None:
    """Raises InputError unless the arguments of `forward_backward` are a batch and a loss."""
    wrong: list[str] = []
    if not isinstance(batch, Batch):
        wrong.append(
            f"the batch is a {type(batch).__name__}; pass a Batch, such as rollout(…).batch"
        )
    if not callable(loss):
        wrong.append(
            f"the loss is {loss!r}; pass a loss object, such as lockstep.losses.CrossEntropyLoss()"
        )
    if wrong:
        raise InputError(f"forward_backward: {'; '.join(wrong)}")


def find_denominator(loss: Loss) -> Denominator:
    """Returns the denominator that a loss declares.

    Raises:
        InputError: The loss declares no denominator.
    """
    named = loss.denominator if hasattr(loss, "denominator") else None
    if named is None or named not in get_args(Denominator):
        if named is None:
            found = "has no denominator"
        else:
            found = f"has the denominator {named!r}"
        raise InputError(
            f"{_name_loss(loss)} {found}; a loss is a frozen dataclass: its denominator, by which "
            f"the learner divides the sum, is one of: {', '.join(get_args(Denominator))}, and "
            "__call__(self, outputs, batch) returns the sum and lockstep.Metrics()"
        )
    return named


def _name_loss(loss: Loss) -> str:
    return f"loss {getattr(loss, '__name__', type(loss).__name__)}"


def reads_entropy(loss: Loss) -> bool:
    """True unless the loss declares `reads_entropy = False`."""
    return getattr(loss, "reads_entropy", True)


def reads_values(loss: Loss) -> ValuePositions:
    """The values that a loss reads; all by default."""
    return getattr(loss, "reads_values", "all")


def call_loss(loss: Loss, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
    """Calls a built-in or user-defined loss on a micro-batch.

    Raises:
        InputError: The loss did not return a sum and mergeable metrics.
    """
    name = _name_loss(loss)
    match loss(outputs, batch):
        case (Tensor() as total, Metrics() as metrics) if (
            total.numel() == 1 and total.requires_grad
        ):
            pass
        case found:
            raise InputError(
                f"{name} returned {type(found).__name__}; return a pair: the sum over the batch, "
                "a scalar tensor with a gradient, and lockstep.Metrics(…), which may be empty"
            )
    for metric, value in metrics.items():
        if not isinstance(value, MetricReduction):
            raise InputError(
                f"{name}: its metric {metric} is a {type(value).__name__}; use a type that can be "
                "merged over parts of a batch, such as lockstep.losses.Mean(total, count)"
            )
    return total, metrics


def count_active(batch: Batch, denominator: Denominator) -> Tensor:
    """Counts trainable tokens, sequences with one, or pairs in which both sequences have one.

    Returns:
        A 0-d tensor on the batch's device.
    """
    match denominator:
        case "tokens":
            return batch.mask.sum()
        case "rows":
            return active_rows(batch).sum()
        case "pairs":
            return active_pairs(batch).sum()
        case _:
            assert_never(denominator)


def split_pairs(batch: Batch, column_B: Tensor) -> tuple[Tensor, Tensor]:
    """Splits a per-sequence column into the first and second sequences of each pair, [P] each.

    Raises:
        ValueError: The batch's groups are not of size two, so micro-batches may split pairs.
    """
    if batch.group_size != 2:
        raise ValueError(
            f"the loss needs pairs, but the batch has group_size {batch.group_size}; set it to 2"
        )
    return column_B[0::2], column_B[1::2]


def active_pairs(batch: Batch) -> Tensor:
    """True for each pair whose sequences both have a trainable token, bool [P]."""
    first_P, second_P = split_pairs(batch, active_rows(batch))
    return first_P & second_P


def active_rows(batch: Batch) -> Tensor:
    """True for each sequence that has a trainable token, bool [B]."""
    return batch.per_sample(batch.mask.float()) > 0
