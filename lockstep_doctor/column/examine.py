"""The examination of two columns: exact values first, then values of other tokens, then differences, then fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lockstep_doctor.column.assignments import RowTokens, find_assignment, find_row_order
from lockstep_doctor.column.columns import TokenColumns
from lockstep_doctor.column.exact import FAR, LEAST_SIZE, find_grids, find_repeated, measure_excess, space_grid
from lockstep_doctor.column.features import list_features
from lockstep_doctor.column.finding import ColumnSide, Finding
from lockstep_doctor.column.fingerprints import find_fits, find_gradual
from lockstep_doctor.column.predicates import Bools, Feature, Floats, Predicate, find_predicate
from lockstep_doctor.column.relations import EXACT, Relation, find_relation
from lockstep_doctor.statistics import CAP

_SIDES: tuple[ColumnSide, ColumnSide] = ("infer", "train")
_TURNED: tuple[ColumnSide, ColumnSide] = ("train", "infer")
_BOTH: tuple[tuple[ColumnSide, ColumnSide], ...] = (_SIDES, _TURNED)
_OWN_VALUE = {"infer": "inference's log-probability", "train": "training's log-probability"}
_THRESHOLDS = (FAR, 20.0, 100.0, 1000.0)
_ROUNDS = 3
_WHOLE_GRID = 0.97
_DECISIVE = 0.8
"""Recall from which a rule and a formula stand before what only grows."""

_CONSISTENT = {
    "exactly 0": ("an entry that was never scored", "padding or another side's tokens counted as generated"),
    "constant": ("a default written where no score was", "a score held over from another token"),
    "floor": ("log-probabilities clamped from below", "a guard against minus infinity"),
    "ceiling": ("log-probabilities clamped from above",),
    "grid": ("log-probabilities stored, sent or computed in few digits",),
    "rows moved": ("rows permuted between sampling and training", "results zipped with another order of requests"),
    "positions moved": ("log-probabilities read one token off", "a token more or less in front, such as BOS"),
    "formula": ("another unit or convention on one side",),
    "offset": ("another denominator: a padded or a cut vocabulary", "a number added after the softmax"),
    "scaled": ("a division by a length or a temperature after the softmax",),
    "not finite": ("tokens outside of one side's support", "an overflow"),
}


@dataclass
class _Examined:
    """Two columns as arrays, and which tokens no finding speaks of yet."""

    own: dict[ColumnSide, Floats]
    features: list[Feature]
    excess: Floats
    free: Bools
    grid: RowTokens
    coarse: Bools
    spacing: Floats

    def find(self, hit: Bools, without: Sequence[str] = (), among: Bools | None = None) -> Predicate | None:
        """Finds what separates the hit tokens among those that are free, or fewer."""
        among = self.free if among is None else among
        chosen = [replace(f, values=f.values[among]) for f in self.features if f.name not in without]
        varied = [f for f in chosen if f.values.size and bool((f.values != f.values[0]).any())]
        return find_predicate(hit[among], varied)

    def hold(self, where: Predicate) -> Bools:
        """The free tokens that a predicate is true of."""
        return self.free & where.holds({feature.name: feature for feature in self.features})

    def allow(self, digits: str, side: ColumnSide, tokens: Bools) -> None:
        """Takes what few digits make of some tokens for no difference."""
        self.coarse |= tokens
        spacing = np.where(tokens, space_grid(digits, self.own[side]), 0.0)
        self.spacing = np.maximum(self.spacing, spacing)
        self.excess = measure_excess(self.own["train"], self.own["infer"], self.spacing)

    def share(self, tokens: Bools) -> float:
        """Share of the squares of all differences that lies in some tokens."""
        with np.errstate(invalid="ignore"):
            off = np.nan_to_num(self.own["train"] - self.own["infer"], nan=0.0, posinf=CAP, neginf=-CAP)
        squares = np.square(np.clip(off, -CAP, CAP))
        return float(squares[tokens].sum() / max(float(squares.sum()), 1e-300))


def examine_columns(columns: TokenColumns) -> list[Finding]:
    """Returns what two columns look like; nothing where they differ as rounding makes them differ.

    Each finding speaks of tokens that the ones before it left: exact zeros and constants, numbers of few digits, values
    of other rows or positions, tokens that a predicate separates, and last what fits all of those that are left.
    """
    compared = columns.compare()
    if not compared.train.numel():
        return []
    examined = _open(columns)
    found = [*_whole_grids(examined), *_part_grids(examined), *_exact(examined)]
    found += [*_rows_moved(examined), *_positions_moved(examined)]
    rest = compared.select(torch.from_numpy(examined.free))
    gradual = find_gradual(rest, columns.versions)
    separated = list(_separate(examined)) if examined.free.any() else []
    if gradual and not any(one.kind != "off" and one.where and one.where.recall > _DECISIVE for one in separated):
        return found + gradual
    return found + separated + find_fits(compared.select(torch.from_numpy(examined.free)), columns.top_ps)


def _open(columns: TokenColumns) -> _Examined:
    compared = columns.compare()
    own: dict[ColumnSide, Floats] = {"train": compared.train.numpy(), "infer": compared.infer.numpy()}
    lengths = compared.lengths.numpy()
    grid = RowTokens(own["infer"], own["train"], compared.row.numpy(), np.cumsum(lengths) - lengths, lengths)
    excess = measure_excess(own["train"], own["infer"])
    free, coarse = np.ones(excess.size, bool), np.zeros(excess.size, bool)
    return _Examined(own, list_features(columns), excess, free, grid, coarse, np.zeros(excess.size))


def _whole_grids(examined: _Examined) -> Iterator[Finding]:
    """Columns that are kept in few digits; from here on, what these digits make is no difference."""
    for side in _SIDES:
        judged = examined.free & (np.abs(examined.own[side]) > LEAST_SIZE)
        for one in find_grids(examined.own[side], examined.free):
            if one.tokens[judged].mean() > _WHOLE_GRID:
                yield _finding(examined, "grid", one.what, side, _every(judged), judged)
                examined.allow(one.what, side, examined.free)
                break


def _part_grids(examined: _Examined) -> Iterator[Finding]:
    """Few digits in some tokens, which a predicate separates."""
    for side in _SIDES if not examined.coarse.any() else ():
        judged = examined.free & (np.abs(examined.own[side]) > LEAST_SIZE)
        for one in find_grids(examined.own[side], examined.free):
            where = examined.find(one.tokens, (_OWN_VALUE[side],), judged)
            if where is not None and where.precision > 0.9 and where.atoms:
                tokens = examined.hold(where)
                yield _finding(examined, "grid", one.what, side, where, tokens)
                examined.allow(one.what, side, tokens)
                break


def _exact(examined: _Examined) -> Iterator[Finding]:
    """Zeros, constants, clamps and what is no number, by side; all are asked about before any is taken out."""
    lost = np.zeros_like(examined.free)
    for side, other in _BOTH:
        own, without = examined.own[side], (_OWN_VALUE[side],)
        if (broken := ~np.isfinite(own)).any():
            where = examined.find(broken, without)
            yield _finding(examined, "not finite", "minus infinity or no number", side, where, broken)
            lost |= broken
        for one in find_repeated(own, examined.own[other], examined.excess):
            if one.kind != "floor" and examined.coarse[one.tokens].mean() > 0.5:
                continue  # numbers of few digits repeat
            kind = {"zero": "exactly 0"}.get(one.kind, one.kind)
            where = examined.find(one.tokens, without)
            yield _finding(examined, kind, one.what, side, where, one.tokens)
            lost |= one.tokens if where is None else one.tokens | examined.hold(where)
    examined.free &= ~lost


def _every(tokens: Bools) -> Predicate:
    return Predicate((), 1.0, 1.0, int(tokens.sum()))


def _rows_moved(examined: _Examined) -> Iterator[Finding]:
    order = find_row_order(examined.grid)
    if len(order) < 2:
        return
    tokens = np.isin(examined.grid.row, list(order)) & examined.free
    steps = {source - row for row, source in order.items()}
    pairs = ", ".join(f"{row} ← {source}" for row, source in list(order.items())[:6])
    how = f"each that of the row {steps.pop():+d} from it" if len(steps) == 1 else f"{pairs}{' …' * (len(order) > 6)}"
    what = f"{len(order)} of {examined.grid.lengths.size} rows have another row's values: {how}"
    yield _finding(examined, "rows moved", what, None, examined.find(tokens), tokens)
    examined.free &= ~tokens


def _positions_moved(examined: _Examined) -> Iterator[Finding]:
    """One shift of all rows together."""
    shift = find_assignment(examined.grid, examined.free)
    if shift is not None:
        yield _say_moved(examined, shift.rows, str(shift), shift.left, _every(examined.free), examined.free)
        examined.free &= False


def _say_moved(
    examined: _Examined, rows: int, shift: str, left: float, where: Predicate, tokens: Bools, side: ColumnSide = "infer"
) -> Finding:
    other: ColumnSide = "train" if side == "infer" else "infer"
    what = f"{_name(side)} values are {_name(other)} {shift} from them; {left:.1%} of the difference is left so"
    kind = "rows moved" if rows else "positions moved"
    return _finding(examined, kind, what, None, where, tokens)


def _separate(examined: _Examined) -> Iterator[Finding]:
    """Tokens that a predicate separates by how far they are off, and the formula for their values."""
    for _ in range(_ROUNDS):
        found = [examined.find(examined.excess > limit) for limit in _THRESHOLDS]
        where = max((one for one in found if one and one.atoms), key=lambda one: one.score, default=None)
        if where is None:
            break
        tokens = examined.hold(where)
        yield _describe(examined, where, tokens)
        examined.free &= ~tokens
    if not examined.free.any():
        return
    whole = _describe(examined, _every(examined.free), examined.free)
    if whole.kind not in ("off", "offset") and whole.share >= EXACT:
        yield whole
        examined.free &= False


def _describe(examined: _Examined, where: Predicate, tokens: Bools) -> Finding:
    """Finding about the values of some tokens, given the other side's."""
    for side, other in _BOTH:
        view = replace(examined.grid, own=examined.own[side], other=examined.own[other])
        shift = find_assignment(view, tokens)
        if shift is not None:
            return _say_moved(examined, shift.rows, str(shift), shift.left, where, tokens, side)
    fits = list[tuple[Relation, ColumnSide]]()
    for side, other in _BOTH:
        fit = find_relation(examined.own[side][tokens], examined.own[other][tokens])
        fits += [] if fit is None else [(fit, side)]
    best = max(fits, key=lambda pair: round(pair[0].share, 3), default=None)
    if best is not None and best[0].share >= EXACT:
        one, side = best
        kind = one.kind if one.kind in ("offset", "scaled") else "formula"
        what = f"{_name(side)} values are {one.what}; that explains {one.share:.1%} of the squares"
        return replace(_finding(examined, kind, what, None, where, tokens), share=one.share)
    delta = examined.own["train"][tokens] - examined.own["infer"][tokens]
    rms = float(np.sqrt(np.square(np.clip(delta, -CAP, CAP)).mean()))
    what = f"off by {rms:.2g} nats (root mean square), {np.mean(delta > 0):.0%} of them upwards on training's side"
    if best is not None and best[0].share > 0.5:
        what += f"; {_name(best[1])} values as {best[0].what} would explain {best[0].share:.0%} of the squares"
    return _finding(examined, "off", what, None, where, tokens)


def _name(side: str) -> str:
    return {"train": "training's", "infer": "inference's"}[side]


def _finding(
    examined: _Examined, kind: str, what: str, side: ColumnSide | None, where: Predicate | None, tokens: Bools
) -> Finding:
    return Finding(kind, what, side, where, int(tokens.sum()), examined.share(tokens), _CONSISTENT.get(kind, ()))
