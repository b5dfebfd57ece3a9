"""The half behind the logits: what a delivered column is, if it is not that of the side's own logits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lockstep_doctor.statistics import difference_up_to_cap, score_tokens

TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Temperatures that are tried where a column differs."""
_TOP_PS = (0.7, 0.8, 0.9, 0.95, 0.99)


def describe_column(logits_MV: Tensor, ids_M: Tensor, column_M: Tensor, tolerance: float) -> str:
    """Says how far a side's column is from that of its logits in float64, and what it equals instead.

    Each guess is a column computed another way from the same logits; it is named where it leaves a tenth of the
    difference.

    Args:
        logits_MV: That each token was chosen from.
        column_M: Their log-probabilities as they are delivered, nats.
        tolerance: Nats that rounding explains.

    Raises:
        ValueError: They speak of other numbers of tokens.
    """
    if not logits_MV.shape[0] == ids_M.numel() == column_M.numel():
        raise ValueError(f"{column_M.numel()} log-probabilities for {ids_M.numel()} tokens, {len(logits_MV)} logits")
    off = difference_up_to_cap(column_M, score_tokens(logits_MV.double(), ids_M))
    before = float(off.square().sum())
    hit = off > tolerance
    lefts = {
        name: float(difference_up_to_cap(column_M, guess).square().sum())
        for name, guess in _guess(logits_MV.double(), ids_M)
    }
    equals = [f"{name} ({1 - left / before:.0%} of it)" for name, left in lefts.items() if left <= 0.1 * before]
    same = f"; it equals {' and '.join(equals)}" if equals and before > 0 else ""
    first = f", the first {int(hit.nonzero()[0])}" if bool(hit.any()) else ""
    error = float(off.square().mean().sqrt())
    return f"logits → column: off by {error:.2g} nats in {int(hit.sum())} of {hit.numel()} tokens{first}{same}"


def _guess(logits_MV: Tensor, ids_M: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields columns of other ids, positions, digits and settings, with what they are."""
    right = score_tokens(logits_MV, ids_M)
    for step in (-1, 1):
        yield f"that of the token {step:+d} from it", score_tokens(logits_MV, ids_M.roll(-step))
        yield f"that of the position {'before' if step < 0 else 'behind'}", right.roll(-step)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        yield f"its own numbers in {name}", right.to(dtype)
        yield f"that of logits in {name}", score_tokens(logits_MV.to(dtype).double(), ids_M)
    for temperature in TEMPERATURES:
        yield f"that at temperature {temperature:g}", score_tokens(logits_MV / temperature, ids_M)
    ordered, order = logits_MV.softmax(1).sort(1, descending=True)
    before = (ordered.cumsum(1) - ordered).gather(1, order.argsort(1))
    for top_p in _TOP_PS:
        yield f"that with top_p {top_p:g}", score_tokens(logits_MV.masked_fill(before >= top_p, -torch.inf), ids_M)
    yield "the logit itself", logits_MV.gather(1, ids_M[:, None])[:, 0]
    yield "the probability", right.exp()
