"""Compares two columns of log-probabilities of the same tokens, from a dump of any program, and
finds patterns in their differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep_doctor.measures import name_places
from lockstep_doctor.statistics import CAP, TokenComparison

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
ColumnSide = Literal["train", "infer"]
RowFact = Literal["temperature", "prompt"]
"""Facts that a dump may give for each row; rows with the same `prompt` answer the same prompt."""

SIDES: Mapping[ColumnSide, str] = {"train": "training", "infer": "inference"}
"""Default names of both sides."""

TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Temperatures to try if a column differs."""

_FAR = 5.0
"""Multiple of the usual difference above which a token counts as off."""
_OFF = 20.0
"""The same for tokens whose values no formula explains."""
_EXPLAINED = 0.14
"""Largest share of the difference that a formula may leave unexplained."""
_LEAST_OFF = 1e-3
"""Mean difference that rounding may cause in all tokens, nats."""
_LEAST_SIZE = 1e-3
"""Magnitude below which numbers have too few digits to judge their format."""
_LEAST_TOKENS = 8
_LEAST_REPEATS = 5
_LEAST_FITTED = 200
_SINGLE = 2.0**-23
"""Relative spacing of fp32, the type of the columns' computation."""
_MOST_ROWS = 512
_PLACES = 64


@dataclass(frozen=True)
class ColumnFinding:
    """A pattern in the differences of two columns; it does not prove a cause.

    Attributes:
        kind: A short name, such as `exactly 0` or `rows moved`.
        side: Side whose numbers show it; None if unknown.
        tokens: Number of affected tokens.
        where: Rows and positions of these tokens.
        share: Share of all squared differences, each counting at most 3 nats, in these tokens.
    """

    kind: str
    what: str
    side: ColumnSide | None
    tokens: int
    where: str
    share: float


@dataclass(frozen=True)
class TokenColumns:
    """Both sides' log-probabilities of N entries in B concatenated rows.

    Attributes:
        train: Log-probabilities of the training side, nats, float64 [N].
        infer: Log-probabilities of the inference side, nats, float64 [N].
        mask: True for generated tokens, bool [N]; only these are compared.
        offsets: Start of each row, then N: int64 [B + 1].
        ids: Token ids, int64 [N]; None if unknown.
        facts: Further facts about rows, float64 [B] each.
        names: Names of the sides in messages.
    """

    train: Tensor
    infer: Tensor
    mask: Tensor
    offsets: Tensor
    ids: Tensor | None = None
    facts: Mapping[RowFact, Tensor] = field(default_factory=dict)
    names: Mapping[ColumnSide, str] = field(default_factory=lambda: SIDES)

    @property
    def row_lengths(self) -> Tensor:
        """Entries of each row, int64 [B]."""
        return self.offsets.diff()

    @property
    def row_index(self) -> Tensor:
        """Row of each entry, int64 [N]."""
        return torch.repeat_interleave(torch.arange(self.row_lengths.numel()), self.row_lengths)

    @property
    def token_position(self) -> Tensor:
        """Position of each entry in its sequence, int64 [N]."""
        return torch.arange(self.train.numel()) - self.offsets[:-1][self.row_index]

    def compare_sides(self) -> TokenComparison:
        """Both sides on the generated tokens."""
        prompt = self.facts.get("prompt")
        cluster = None if prompt is None else prompt.long()
        every = TokenComparison(
            self.train.double(), self.infer.double(), self.row_lengths, self.token_position, cluster
        )
        return every.select_tokens(self.mask)

    def take_rows(self, rows: int) -> TokenColumns:
        """The first `rows` rows."""
        end = int(self.offsets[rows])
        facts: dict[RowFact, Tensor] = {name: value[:rows] for name, value in self.facts.items()}
        return replace(
            self,
            train=self.train[:end],
            infer=self.infer[:end],
            mask=self.mask[:end],
            offsets=self.offsets[: rows + 1],
            ids=None if self.ids is None else self.ids[:end],
            facts=facts,
        )


def examine_columns(columns: TokenColumns) -> list[ColumnFinding]:
    """Returns patterns in the differences of two columns; none if rounding explains the
    differences.

    The order is: numbers of few digits, repeated values, values of other rows, and a formula for
    the rest. Each finding covers tokens that earlier ones do not.
    """
    compared = columns.compare_sides()
    if compared.train.numel():
        return list(_ColumnExaminer(columns, compared).find_patterns())
    return []


class _ColumnExaminer:
    """Two columns as arrays, and the tokens that no finding covers yet."""

    def __init__(self, columns: TokenColumns, compared: TokenComparison) -> None:
        self._names = columns.names
        self._compared = compared
        self._sides: dict[ColumnSide, TokenComparison] = {
            "infer": compared,
            "train": compared.swap_sides(),
        }
        self._free = np.ones(compared.train.numel(), bool)
        self._spacing = np.zeros(self._free.size)
        self._delta = compared.delta.clamp(-CAP, CAP).numpy()

    def find_patterns(self) -> Iterator[ColumnFinding]:
        """Yields all findings."""
        yield from self._find_digits()
        excess = measure_excess(self._compared, self._spacing)
        yield from self._find_repeated(excess)
        yield from self._find_moved_rows()
        if self._free.any() and np.abs(self._delta[self._free]).mean() > _LEAST_OFF:
            yield from self._find_formula(self._free)
        if self._free.sum() >= _LEAST_FITTED and self._delta[self._free].any():
            yield from self._fit_nucleus()
        yield from self._find_formula(self._free & (excess > _FAR))
        off = self._free & (excess > _OFF)
        squares = np.square(self._delta)
        if squares[off].sum() > 0.5 * squares.sum():
            rms = float(np.sqrt(squares[off].mean()))
            yield self._report_finding(
                "off", f"off by {rms:.2g} nats (root mean square)", None, off
            )

    def _report_finding(
        self, kind: str, what: str, side: ColumnSide | None, tokens: Bools
    ) -> ColumnFinding:
        """Builds a finding and removes its tokens from later ones, unless it is about number
        formats.
        """
        squares = np.square(self._delta)
        row = self._compared.row_index.numpy()
        position = self._compared.position.numpy()
        rows = name_places(np.unique(row[tokens]).tolist(), self._compared.lengths.numel(), "row")
        positions = name_places(
            np.unique(position[tokens]).tolist(), int(position.max()) + 1, "position"
        )
        share = float(squares[tokens].sum() / max(float(squares.sum()), 1e-300))
        if kind != "grid":
            self._free = self._free & ~tokens
        return ColumnFinding(kind, what, side, int(tokens.sum()), f"{rows}, {positions}", share)

    def _find_digits(self) -> Iterator[ColumnFinding]:
        """Finds sides whose numbers all have few digits; differences within that spacing no longer
        count.
        """
        for side, compared in self._sides.items():
            own = compared.infer.numpy()
            judged = np.isfinite(own) & (np.abs(own) > _LEAST_SIZE)
            there = [one for one in _GRIDS if judged.any() and one[1](own)[judged].mean() > 0.97]
            if not there or np.unique(own[judged]).size < _LEAST_REPEATS:
                continue
            name, _, spacing = there[0]
            yield self._report_finding("grid", name, side, judged)
            self._spacing = np.maximum(self._spacing, spacing(np.nan_to_num(own)))

    def _find_repeated(self, excess: Floats) -> Iterator[ColumnFinding]:
        """Finds zeros, constants, clamps and non-finite values, by side."""
        for side, compared in self._sides.items():
            own = compared.infer.numpy()
            other = compared.train.numpy()
            broken = self._free & ~np.isfinite(own)
            if broken.any():
                yield self._report_finding("not finite", "infinite or NaN", side, broken)
            far = self._free & (excess > _FAR) & np.isfinite(own)
            values, count = np.unique(own[far], return_counts=True)
            for value in values[count >= _LEAST_REPEATS]:
                tokens = far & (own == value)
                # coarse numbers repeat by chance
                is_coarse = value != 0 and (self._spacing[tokens] > 0).mean() > 0.5
                if not is_coarse and np.mean(other[tokens] == other[tokens][0]) < 0.5:
                    yield self._report_finding(
                        *_name_value(float(value), own, other, tokens), side, tokens
                    )

    def _find_moved_rows(self) -> Iterator[ColumnFinding]:
        order = find_row_order(self._compared)
        if len(order) < 2:
            return
        pairs = ", ".join(f"{row} ← {source}" for row, source in list(order.items())[:6])
        what = (
            f"{len(order)} of {self._compared.lengths.numel()} rows have another row's values: "
            f"{pairs}"
        )
        tokens = np.isin(self._compared.row_index.numpy(), list(order)) & self._free
        yield self._report_finding("rows moved", what, None, tokens)

    def _find_formula(self, tokens: Bools) -> Iterator[ColumnFinding]:
        """Finds a formula from one side's values to the other's that explains the difference on
        some tokens.
        """
        if tokens.sum() < _LEAST_TOKENS:
            return
        each: list[tuple[_Formula, ColumnSide]] = []
        for side, compared in self._sides.items():
            for formula in _list_formulas(compared, tokens):
                each.append((formula, side))
        (kind, what, left, _), side = min(each, key=lambda one: one[0][2] + one[0][3])
        if left < _EXPLAINED:
            other: ColumnSide = "train" if side == "infer" else "infer"
            relation = (
                f"{self._names[side]}'s values are "
                f"{what.replace(_OTHERS, self._names[other] + _OF)}"
            )
            yield self._report_finding(
                kind, f"{relation}; {left:.1%} of the difference is left", None, tokens
            )

    def _fit_nucleus(self) -> Iterator[ColumnFinding]:
        """Finds the nucleus over which one side is renormalized: Δ has one sign and ends at
        −log top_p.

        If one token is the whole nucleus, that side has 0 and the other does not.
        """
        tokens = self._free
        for side, compared in self._sides.items():
            own = compared.infer.numpy()[tokens]
            other = compared.train.numpy()[tokens]
            gain = own - other
            kept = math.exp(-gain.max())
            one_sided = float(np.maximum(gain, 0).sum() / np.abs(gain).sum())
            near = np.mean(gain > 0.7 * gain.max())
            certain = np.mean((own > -1e-6) & (other < -1e-3))
            if one_sided < 0.97 or near < 0.02 or certain < 0.02 or not 0.3 < kept < 0.999:
                continue
            what = (
                f"as if renormalized over a nucleus of {kept:.3g}: the difference is never "
                f"above −log {kept:.3g}"
            )
            yield self._report_finding("renormalized over a nucleus", what, side, tokens)
            return


def measure_excess(compared: TokenComparison, spacing: Floats | float = 0.0) -> Floats:
    """Returns each token's difference in multiples of the usual one, [M]; infinite if one side is
    not finite.

    Rounding moves a log-probability in proportion to 1 − p, and by the last digit of its storage
    type. The usual difference is estimated from the quarter of tokens with the smallest
    differences, so that damage to most tokens does not count as usual.

    Args:
        compared: Both sides.
        spacing: Spacing of the stored numbers, if coarser than fp32's.
    """
    off = compared.delta.abs().numpy()
    surprise = (
        torch.maximum(-compared.train, -compared.infer)
        .nan_to_num(0.0, 50.0)
        .clamp(0.0, 50.0)
        .numpy()
    )
    shape = -np.expm1(-surprise) + 1e-6
    least = 3e-6 + _SINGLE * surprise + spacing
    usual = 0.0
    if np.isfinite(off).any():
        usual = np.quantile((off / shape)[np.isfinite(off)], 0.25) / 0.319
    return off / (usual * shape + least)


def _name_value(value: float, own: Floats, other: Floats, tokens: Bools) -> tuple[str, str]:
    """Returns kind and description of a value that many tokens share; it is a clamp if the other
    side's values lie beyond it.
    """
    if value == 0.0:
        return "exactly 0", "exactly 0"
    for kind, sign in (("floor", 1), ("ceiling", -1)):
        is_end = sign * value <= np.min(sign * own[np.isfinite(own)])
        if is_end and (sign * other[tokens] < sign * value).all():
            return kind, f"cut off at {value:.6g}, its {kind}"
    return "constant", f"exactly {value:.6g}"


_Grid = tuple[str, Callable[[Floats], Bools], Callable[[Floats], Floats]]
"""A number format: its name, a test whether numbers have it, and their spacing."""


def _float_grid(name: str, dtype: torch.dtype) -> _Grid:
    step = torch.finfo(dtype).eps
    return (
        f"numbers of {name}",
        lambda x: torch.from_numpy(x).to(dtype).double().numpy() == x,
        lambda x: np.abs(x) * step,
    )


def _decimal_grid(digits: int) -> _Grid:
    def has_decimals(x: Floats) -> Bools:
        near = np.round(x, digits)
        return (near == x) | (near.astype(np.float32).astype(np.float64) == x)

    return (
        f"numbers of {digits} decimal{'s' * (digits > 1)}",
        has_decimals,
        lambda x: np.full_like(x, 10.0**-digits),
    )


_GRIDS = (
    *map(_decimal_grid, (1, 2)),
    _float_grid("bf16", torch.bfloat16),
    _float_grid("fp16", torch.float16),
    _decimal_grid(3),
)

_OTHERS = "the others"
_OF = "'s"
_Formula = tuple[str, str, float, float]
"""Kind, description, unexplained share of the mean difference, and a penalty in the choice among
formulas.
"""


def _list_formulas(compared: TokenComparison, tokens: Bools) -> Iterator[_Formula]:
    """Yields formulas from the training side's values to the inference side's on some tokens."""
    own = compared.infer.numpy()[tokens]
    other = compared.train.numpy()[tokens]
    before = max(_mean_off(own, other), 1e-300)
    offset = float(np.median(own - other))
    factor = float(np.median(own / np.minimum(other, -1e-12)))
    yield "offset", f"{_OTHERS} {offset:+.4g} nats", _mean_off(own, other + offset) / before, 0.01
    yield "scaled", f"{factor:.4g} times {_OTHERS}", _mean_off(own, factor * other) / before, 0.03
    row = compared.row_index.numpy()
    every = compared.train.numpy()
    for shift in (-2, -1, 1, 2):
        inside = (np.roll(row, -shift) == row)[tokens]
        if inside.mean() > 0.5:
            left = _mean_off(own[inside], np.roll(every, -shift)[tokens][inside]) / before
            what = f"{_OTHERS} {shift:+d} position{'s' * (abs(shift) > 1)} from them"
            yield "positions moved", what, left, 0.001 * abs(shift)


def find_row_order(compared: TokenComparison) -> dict[int, int]:
    """Finds rows of the inference side with the values of a different training row; returns row →
    source row.

    Rows are compared on their common first tokens, so rows of different lengths can match.
    """
    rows = compared.lengths.numel()
    if not 2 <= rows <= _MOST_ROWS:
        return {}
    row = compared.row_index.numpy()
    position = compared.token_index.numpy() - 1
    own, other = np.full((2, rows, _PLACES), np.nan)
    for grid, side in ((own, compared.infer), (other, compared.train)):
        inside = position < _PLACES
        grid[row[inside], position[inside]] = side.nan_to_num(-1e6, -1e6, -1e6).numpy()[inside]
    found: dict[int, int] = {}
    for number in range(rows):
        off = np.minimum(np.abs(own[number] - other), 1.0)
        count = (~np.isnan(off)).sum(1)
        mean = np.where(count >= 4, np.nansum(off, 1) / np.maximum(count, 1), np.inf)
        best = int(np.argmin(mean))
        if (
            best != number
            and mean[best] < 0.1 * mean[number]
            and np.sum(mean < 2 * mean[best] + 1e-9) == 1
        ):
            found[number] = best
    return found


def _mean_off(a: Floats, b: Floats) -> float:
    return float(np.minimum(np.abs(a - b), 1.0).mean())
