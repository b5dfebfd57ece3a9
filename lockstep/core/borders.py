"""Checks of values passed between parts: a NaN, infinite or out-of-range value ends the step.

These values are in host memory, so no check waits for a device. Each reads its numbers once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.errors import RunError
from lockstep.core.types import Request, SamplingParams

LARGEST_LOGPROB = 0.1
"""Largest log-probability, nats, that bf16 rounding explains; a probability or loss exceeds it."""
_LOOK = "check that model's weights and, if it trains, lower its learning rate"


class NotFiniteError(RunError):
    """A number is NaN, infinite or out of range; no weights have been changed by it.

    Attributes:
        batch: The batch that it belongs to.
    """

    def __init__(self, message: str, batch: Batch) -> None:
        super().__init__(message)
        self.batch = batch


def require_finite(what: str, batch: Batch, *columns: Tensor, cure: str = _LOOK) -> None:
    """Raises an error for numbers that are NaN or infinite.

    Args:
        what: Name of the numbers, such as "the critic's values".
        batch: The batch that they belong to.
        columns: [N], [N, K] or [B].
        cure: Advice for the user.

    Raises:
        NotFiniteError: Names the first bad number and its position.
    """
    _require_numbers(what, batch, columns, math.inf, cure)


def require_logprobs(whose: str, batch: Batch, *columns: Tensor) -> None:
    """Like `require_finite`, for log-probabilities, which also must not be above 0."""
    _require_numbers(f"log-probabilities of {whose}", batch, columns, LARGEST_LOGPROB, _LOOK)


def require_responses(
    whose: str, batch: Batch, requests: Sequence[Request], sampling: SamplingParams
) -> None:
    """Raises an error for responses that do not match the requests, and invalid log-probabilities.

    Args:
        whose: Name of the sampler, such as "the judge's sampler".
        batch: See `samplers.base.Sampler.generate`.
        requests: The requests.
        sampling: The distribution, and the longest response.

    Raises:
        NotFiniteError: Names the first bad response.
    """
    asked_B = torch.tensor([len(request.tokens) for request in requests])
    if len(batch) != len(asked_B):
        raise NotFiniteError(
            f"{whose} gave {len(batch)} responses to {len(asked_B)} requests; restart it", batch
        )
    room_B = batch.lengths - asked_B
    low, high = map(int, room_B.aminmax())
    if (
        low < 1
        or high > sampling.max_tokens
        or int(batch.mask.count_nonzero()) != int(room_B.sum())
    ):
        made_B = batch.per_sample(batch.mask.long())
        wrong_B = (made_B < 1) | (made_B > sampling.max_tokens) | (made_B != room_B)
        row = int(wrong_B.nonzero()[0])
        raise NotFiniteError(
            f"{whose} gave {int(made_B[row])} tokens in a sequence of {int(batch.lengths[row])} "
            f"for row {row + 1} of {len(batch)}, whose prompt has {int(asked_B[row])} and whose "
            f"response must have 1 to {sampling.max_tokens}; check the engine's version and "
            "settings",
            batch,
        )
    require_logprobs(whose, batch, batch["sampler_logprob"])


def _require_numbers(
    what: str, batch: Batch, columns: Sequence[Tensor], most: float, cure: str
) -> None:
    for column in columns:
        if not column.numel():
            continue
        low, high = column.aminmax()  # both are NaN if any number is
        if bool(low.isfinite() & high.isfinite() & (high <= most)):
            continue
        index, *rest = (~(column.isfinite() & (column <= most))).nonzero()[0].tolist()
        value = float(column[index, *rest])
        place = f"row {index + 1} of {len(batch)}"
        if len(column) == batch.tokens.numel():
            row = int(batch.row[index]) + 1
            place = f"token {int(batch.position[index]) + 1} of row {row} of {len(batch)}"
        raise NotFiniteError(f"{what} are {value:g} for {place}; {cure}", batch)
