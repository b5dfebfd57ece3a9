"""Top-k and top-p filters of full logits.

Names are those of NeMo RL's `algorithms.logits_sampling_utils`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lockstep_logprobs.support import support_floor

TOP_K_TOP_P_CHUNK_SIZE = 256
"""Default number of rows to search at a time; bounds memory, never changes a value."""


@dataclass(frozen=True)
class TrainingSamplingParams:
    """Parameters of the sampling distribution.

    Attributes:
        top_k: Number of likeliest tokens; None or a number below 1: all.
        top_p: Probability to reach; 1: all tokens.
        temperature: Divisor of the logits.
    """

    top_k: int | None = None
    top_p: float = 1.0
    temperature: float = 1.0


class SamplingFilters(Protocol):
    """Any object with these two attributes.

    `TrainingSamplingParams` here, NeMo RL's own class, or a caller's.
    """

    @property
    def top_k(self) -> int | None: ...

    @property
    def top_p(self) -> float | None: ...


def need_top_k_or_top_p_filtering(sampling_params: SamplingFilters | None) -> bool:
    """True if top-k or top-p excludes any token."""
    if sampling_params is None:
        return False
    return _has_filters(sampling_params.top_k, sampling_params.top_p)


def _has_filters(top_k: int | None, top_p: float | None) -> bool:
    return (top_k is not None and top_k > 0) or (top_p is not None and top_p < 1.0)


def apply_top_k_top_p(
    logits: Tensor,
    top_k: int | None,
    top_p: float | None,
    chunk_size: int | None = TOP_K_TOP_P_CHUNK_SIZE,
) -> tuple[Tensor, Tensor | None]:
    """Sets logits that top-k and top-p exclude to minus infinity; their gradient is 0.

    Args:
        logits: Logits [..., V], of any floating type; the temperature is already applied.
        top_k: Number of tokens to keep, including all equal to the last; None or a number below 1:
            all.
        top_p: Probability to reach, after top-k; None or ≥ 1: all.
        chunk_size: Maximum rows to search at a time; changes memory and speed, never values.

    Returns:
        The logits in their own type, and a mask of the kept ones, bool [..., V]; the unchanged
    logits and None if neither excludes any.
    """
    if not _has_filters(top_k, top_p):
        return logits, None
    rows = logits.detach().reshape(-1, logits.shape[-1])
    floor = support_floor(rows, top_k=top_k, top_p=top_p, max_rows=chunk_size).view(
        logits.shape[:-1]
    )
    outside = logits < floor[..., None]
    return logits.masked_fill(outside, float("-inf")), ~outside
