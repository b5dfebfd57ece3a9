"""The smallest request that still shows a gap."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

KEPT = 0.3
"""Share of the gap that a smaller request has to keep."""

_MOST = 40
"""Requests that are tried."""

FEWEST = 2
"""Tokens of a request: one is read, and one is scored."""


def shrink(shows: Callable[[Tensor], bool], tokens_T: Tensor) -> Tensor:
    """Drops stretches of tokens, long ones first, as long as the rest shows what all of them do."""
    size, tried = tokens_T.numel() // 2, 0
    while size and tried < _MOST:
        end = tokens_T.numel()
        while end > 0 and tried < _MOST:  # from the end: what comes later changes nothing before it
            start = max(end - size, 0)
            fewer = torch.cat([tokens_T[:start], tokens_T[end:]])
            tried += 1
            if fewer.numel() >= FEWEST and shows(fewer):
                tokens_T = fewer
            end = start
        size //= 2
    return tokens_T
