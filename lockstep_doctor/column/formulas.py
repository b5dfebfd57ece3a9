"""Formulas for one side's values: exact ones, of the other side's values, and of other ids or settings of logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from lockstep_doctor.column.predicates import Bools, Floats, Ints
from lockstep_doctor.statistics import Compared, difference_up_to_cap, score_tokens

FAR = 5.0
"""Multiple of the usual difference from which a token counts as hit."""

LEAST_SIZE = 1e-3
"""Numbers below it have too few digits to say anything."""

_LEAST_REPEATS = 5
_MOST_VALUES = 4
_SINGLE = 2.0**-23
"""Relative spacing of fp32, in which columns are computed."""

EXACT = 0.14
"""Share of the difference that may be left where a formula is the whole of it."""

OTHERS = "the other side's"

_FAR = range(-8, 9)
_LEAST_TOKENS, _MOST_TOKENS = 8, 2000
_MOST_ROWS, _PLACES = 512, 64

TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Temperatures that are tried where a column differs."""
_TOP_PS = (0.7, 0.8, 0.9, 0.95, 0.99)

_UNITS: tuple[tuple[str, Callable[[Floats], Floats]], ...] = (
    (f"{OTHERS} with the sign turned", np.negative),
    (f"{OTHERS} probabilities, not their logarithms", lambda x: np.exp(np.minimum(x, 50.0))),
    (f"{OTHERS} as logarithms to the base 2", lambda x: x / math.log(2)),
    (f"{OTHERS} as logarithms to the base 10", lambda x: x / math.log(10)),
)


def measure_excess(sides: Compared, spacing: Floats | float = 0.0) -> Floats:
    """Returns of each token how many times the usual difference it is off, [M]; infinite where one side has no number.

    Rounding moves the log-probability of a token in proportion to 1 − p, and by the last digit of what it is kept in.
    What is usual is taken from the quarter of the tokens that are least off, so that damage to most of them does not
    count as usual.

    Args:
        spacing: Of the numbers that both are kept in, where it is coarser than fp32's.
    """
    off = sides.delta.abs().numpy()
    surprise = torch.maximum(-sides.train, -sides.infer).nan_to_num(0.0, 50.0).clamp(0.0, 50.0).numpy()
    shape, least = -np.expm1(-surprise) + 1e-6, 3e-6 + _SINGLE * surprise + spacing
    usual = np.quantile((off / shape)[np.isfinite(off)], 0.25) / 0.319 if np.isfinite(off).any() else 0.0
    return off / (usual * shape + least)


def find_repeated(own: Floats, other: Floats, excess: Floats) -> Iterator[tuple[str, str, Bools]]:
    """Yields the values that tokens of one side have again and again where they are far off.

    Args:
        own: The side that is asked about, [M].
        excess: From `measure_excess`.

    Yields:
        The kind of finding, the value in words, and the tokens that have it.
    """
    far = (excess > FAR) & np.isfinite(own)
    values, count = np.unique(own[far], return_counts=True)
    for value in values[np.argsort(-count, kind="stable")][: min(_MOST_VALUES, int((count >= _LEAST_REPEATS).sum()))]:
        tokens = far & (own == value)
        if np.mean(other[tokens] == other[tokens][0]) < 0.5:
            yield _name_value(float(value), own, other, tokens)


def _name_value(value: float, own: Floats, other: Floats, tokens: Bools) -> tuple[str, str, Bools]:
    """A value that many tokens have: a bound, where the other side lies beyond it there and nowhere else."""
    if value == 0.0:
        return "exactly 0", "exactly 0", tokens
    for kind, sign in (("floor", 1), ("ceiling", -1)):
        beyond = sign * other < sign * value
        at_end = sign * value <= np.min(sign * own[np.isfinite(own)])
        if at_end and beyond[tokens].all() and np.mean(own[beyond] == value) > 0.9:
            return kind, f"cut off at {value:.6g}, its {kind}", own == value
    return "constant", f"exactly {value:.6g}", own == value


@dataclass(frozen=True)
class ValueGrid:
    """A format that columns may be kept in.

    Attributes:
        has: Which numbers are of it, [M].
        spacing: How far apart they are there, [M].
    """

    name: str
    has: Callable[[Floats], Bools]
    spacing: Callable[[Floats], Floats]


def find_grids(own: Floats, free: Bools) -> Iterator[tuple[ValueGrid, Bools]]:
    """Yields the grids that some of the free tokens are of, the coarsest first, and which tokens these are."""
    free = free & np.isfinite(own) & (np.abs(own) > LEAST_SIZE)
    for grid in _GRIDS:
        tokens = free & grid.has(own)
        _, count = np.unique(own[tokens], return_counts=True)
        if count.sum() >= max(_LEAST_REPEATS, 0.01 * own.size) and count.max() <= 0.5 * count.sum():
            yield grid, tokens


def _digits_of(name: str, dtype: torch.dtype) -> ValueGrid:
    def has(x: Floats) -> Bools:
        return torch.from_numpy(x).to(dtype).double().numpy() == x

    return ValueGrid(f"numbers of {name}", has, lambda x: np.abs(x) * torch.finfo(dtype).eps)


def _decimals(digits: int) -> ValueGrid:
    def has(x: Floats) -> Bools:
        near = np.round(x, digits)
        return (near == x) | (near.astype(np.float32).astype(np.float64) == x)

    return ValueGrid(f"numbers of {digits} decimal{'s' * (digits > 1)}", has, lambda x: np.full_like(x, 10.0**-digits))


_GRIDS = (
    *map(_decimals, (1, 2)),
    _digits_of("bf16", torch.bfloat16),
    _digits_of("fp16", torch.float16),
    *map(_decimals, (3, 4, 5)),
)


@dataclass(frozen=True)
class Formula:
    """A formula for one side's values, given the other's.

    Attributes:
        left: Share of the mean difference, each counting at most 1 nat, that it does not explain.
        price: That it must explain more than a simpler one.
    """

    kind: str
    what: str
    left: float
    price: float = 0.0

    @property
    def rank(self) -> float:
        """The least is best."""
        return self.left + self.price


def find_formula(sides: Compared, tokens: Bools) -> Formula | None:
    """Finds the formula for the inference side's values of some tokens that leaves least of the difference.

    Of those that leave alike it is the simplest.
    """
    where = np.flatnonzero(tokens)
    own, other = sides.infer.numpy()[where], sides.train.numpy()[where]
    before = _mean_off(own, other)
    if where.size < _LEAST_TOKENS or before <= 0 or not np.isfinite(own).all() or not np.isfinite(other).all():
        return None
    offset, factor = float(np.median(own - other)), fit_factor(own, other)
    units = [Formula("formula", what, _mean_off(own, change(other)) / before) for what, change in _UNITS]
    added = Formula("offset", f"{OTHERS} {offset:+.4g} nats", _mean_off(own, other + offset) / before, 0.01)
    scaled = Formula("scaled", f"{factor:.4g} times {OTHERS}", _mean_off(own, factor * other) / before, 0.03)
    shifts = _find_shifts(sides, where[:: 1 + where.size // _MOST_TOKENS])
    return min([*units, added, scaled, *shifts], key=lambda one: one.rank)


def fit_factor(own: Floats, other: Floats) -> float:
    """The factor between two columns that both have errors (Deming), where least squares would be attenuated."""
    xx, yy, xy = (float((a * b).sum()) for a, b in ((other, other), (own, own), (other, own)))
    if abs(xy) < 1e-300:
        return 0.0
    return (yy - xx + math.sqrt((yy - xx) ** 2 + 4 * xy * xy)) / (2 * xy)


def _find_shifts(sides: Compared, where: Ints) -> Iterator[Formula]:
    """Yields values of the token some rows and some places on, where most of the tokens have one there."""
    row, place, lengths = sides.row.numpy()[where], sides.index.numpy()[where] - 1, sides.lengths.numpy()
    starts, own, other = np.cumsum(lengths) - lengths, sides.infer.numpy()[where], sides.train.numpy()
    before = _mean_off(own, other[where])
    for rows, places in product(_FAR, _FAR):
        source, at = np.clip(row + rows, 0, lengths.size - 1), place + places
        there = (source == row + rows) & (at >= 0) & (at < lengths[source])
        if before > 0 and (rows or places) and there.mean() > 0.5:
            left = _mean_off(own[there], other[starts[source[there]] + at[there]]) / before
            how = [f"{n:+d} {name}{'s' * (abs(n) > 1)}" for n, name in ((rows, "row"), (places, "position")) if n]
            kind = "rows moved" if rows else "positions moved"
            yield Formula(kind, f"{OTHERS} {' and '.join(how)} from them", left, 0.001 * (abs(rows) + abs(places)))


def find_row_order(sides: Compared) -> dict[int, int]:
    """Finds the rows whose values are those of another row on the training side: row → the row that has them.

    Rows are compared by the first tokens that both have, so rows of other lengths may be found as well.
    """
    rows = sides.lengths.numel()
    if not 2 <= rows <= _MOST_ROWS:
        return {}
    row, place = sides.row.numpy(), sides.index.numpy() - 1
    own, other = np.full((2, rows, _PLACES), np.nan)
    for grid, side in ((own, sides.infer), (other, sides.train)):
        inside = place < _PLACES
        grid[row[inside], place[inside]] = side.nan_to_num(-1e6, -1e6, -1e6).numpy()[inside]
    found: dict[int, int] = {}
    for number in range(rows):
        off = np.minimum(np.abs(own[number] - other), 1.0)
        count = (~np.isnan(off)).sum(1)
        mean = np.where(count >= 4, np.nansum(off, 1) / np.maximum(count, 1), np.inf)
        best = int(np.argmin(mean))
        if best != number and mean[best] < 0.1 * mean[number] and np.sum(mean < 2 * mean[best] + 1e-9) == 1:
            found[number] = best
    return found


def _mean_off(a: Floats, b: Floats) -> float:
    with np.errstate(invalid="ignore"):
        off = np.where(a == b, 0.0, np.abs(a - b))
    return float(np.minimum(np.nan_to_num(off, nan=1.0, posinf=1.0), 1.0).mean()) if a.size else 0.0


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
