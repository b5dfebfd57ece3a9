"""Rows of a table of tokens that training has never touched, as far as their numbers tell."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NEAR_ZERO = 0.05
"""Share of the median norm below which a row is near zero."""
_FAR, _SPREADS = 3.0, 8.0
"""Limits for a norm of another size: factor from the median, and robust standard deviations of its logarithm."""


def find_untrained(weight_VC: Tensor) -> dict[str, list[int]]:
    """Ids by what is odd about their rows: not finite, near zero, of another size than the others, or alike.

    Args:
        weight_VC: One row for each token.
    """
    rows = weight_VC.float().cpu()
    finite = rows.isfinite().all(1)
    norm = rows.norm(dim=1)
    size = norm.clamp(min=1e-30).log() - norm[finite].median().clamp(min=1e-30).log()
    spread = 1.4826 * float(size[finite].abs().median())
    zero = norm <= _NEAR_ZERO * norm[finite].median()
    far = finite & ~zero & (size.abs() > max(math.log(_FAR), _SPREADS * spread))
    return {
        "not finite": (~finite).nonzero()[:, 0].tolist(),
        "near zero": zero.nonzero()[:, 0].tolist(),
        "of another size": far.nonzero()[:, 0].tolist(),
        "alike": [] if bool(zero.all()) else _find_alike(rows, finite & ~zero),
    }


def _find_alike(rows_VC: Tensor, wanted_V: Tensor) -> list[int]:
    """Ids whose row another one has, too: equal projections on a random direction, to the bit."""
    direction = torch.randn(rows_VC.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    place = (rows_VC.double() * direction).sum(1)
    _, number, count = torch.unique(place, return_inverse=True, return_counts=True)
    return ((count[number] > 1) & wanted_V).nonzero()[:, 0].tolist()
