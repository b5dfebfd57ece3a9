"""The examination of two columns: exact values first, then values of other tokens, then differences, then fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch

from lockstep_doctor.column.columns import ColumnSide, Finding, TokenColumns, list_features, name_value
from lockstep_doctor.column.fits import find_fits, find_trends
from lockstep_doctor.column.formulas import (
    EXACT,
    FAR,
    LEAST_SIZE,
    OTHERS,
    ValueGrid,
    find_formula,
    find_grids,
    find_repeated,
    find_row_order,
    measure_excess,
)
from lockstep_doctor.column.predicates import Bools, Feature, Floats, Predicate, find_predicate
from lockstep_doctor.statistics import CAP, Compared

_BOUNDS = (FAR, 20.0, 100.0, 1000.0)
_ROUNDS = 3
_LEAST_OFF = 1e-3  # nats
_WHOLE_GRID = 0.97
_DECISIVE = 0.8
"""Recall from which a rule and a formula stand before what only grows."""


@dataclass
class _ColumnState:
    """Two columns as arrays, and which tokens no finding speaks of yet."""

    sides: dict[ColumnSide, Compared]  # each in the inference side's place
    names: Mapping[ColumnSide, str]
    features: list[Feature]
    excess: Floats
    free: Bools
    coarse: Bools
    spacing: Floats

    def find(self, hit: Bools, without: str = "", among: Bools | None = None) -> Predicate | None:
        """Finds what separates the hit tokens among those that are free, or fewer."""
        among = self.free if among is None else among
        chosen = [replace(one, values=one.values[among]) for one in self.features if one.name != without]
        return find_predicate(hit[among], [one for one in chosen if one.varies])

    def hold(self, where: Predicate) -> Bools:
        """The free tokens that a predicate is true of."""
        return self.free & where.holds({feature.name: feature for feature in self.features})

    def allow(self, grid: ValueGrid, side: ColumnSide, tokens: Bools) -> None:
        """Takes what few digits make of some tokens for no difference."""
        self.coarse |= tokens
        own = np.nan_to_num(self.sides[side].infer.numpy())
        self.spacing = np.maximum(self.spacing, np.where(tokens, grid.spacing(own), 0.0))
        self.excess = measure_excess(self.sides["infer"], self.spacing)

    def report(self, kind: str, what: str, side: ColumnSide | None, where: Predicate | None, tokens: Bools) -> Finding:
        """The finding, with the share of the squares of all differences that lies in its tokens."""
        squares = np.square(self.delta)
        share = float(squares[tokens].sum() / max(float(squares.sum()), 1e-300))
        return Finding(kind, what, side, where, int(tokens.sum()), share)

    @property
    def delta(self) -> Floats:
        """Training side minus inference side, each at most 3 nats, [M]."""
        return self.sides["infer"].delta.clamp(-CAP, CAP).numpy()


def examine_columns(columns: TokenColumns) -> list[Finding]:
    """Returns what two columns look like; nothing where they differ as rounding makes them differ.

    Each finding speaks of tokens that the ones before it left: numbers of few digits, exact zeros and constants, values
    of other rows or positions, tokens that a predicate separates, and last what fits all of those that are left.
    """
    compared = columns.compare()
    tokens = compared.train.numel()
    if not tokens:
        return []
    sides: dict[ColumnSide, Compared] = {"infer": compared, "train": compared.swap()}
    free, excess = np.ones(tokens, bool), measure_excess(compared)
    examined = _ColumnState(sides, columns.names, list_features(columns), excess, free, ~free, np.zeros(tokens))
    found = [*_grids(examined), *_exact(examined), *_rows_moved(examined), *_whole(examined)]
    trends = find_trends(compared.select(torch.from_numpy(examined.free)), columns.facts.get("weight version"))
    separated = [*_separate(examined), *_whole(examined)]
    if trends and not any(one.kind != "off" and one.where and one.where.recall > _DECISIVE for one in separated):
        return found + trends
    fits = find_fits(compared.select(torch.from_numpy(examined.free)), columns.facts.get("top_p"), columns.names)
    return found + separated + fits


def _grids(examined: _ColumnState) -> Iterator[Finding]:
    """Sides that are kept in few digits, whole or where a predicate says; what these make is no difference then."""
    for side, compared in examined.sides.items():
        own = compared.infer.numpy()
        judged = examined.free & (np.abs(own) > LEAST_SIZE)
        there = list(find_grids(own, examined.free))
        whole = [(grid, _every(judged)) for grid, tokens in there if tokens[judged].mean() > _WHOLE_GRID]
        asked = [] if whole or examined.coarse.all() else there
        parts = ((grid, examined.find(tokens, name_value(examined.names[side]), judged)) for grid, tokens in asked)
        for grid, where in chain(whole, parts):
            if where is not None and where.precision > 0.9:
                tokens = examined.hold(where)
                yield examined.report("grid", grid.name, side, where, tokens)
                examined.allow(grid, side, tokens)
                break


def _exact(examined: _ColumnState) -> Iterator[Finding]:
    """Zeros, constants, clamps and what is no number, by side; all are asked about before any is taken out."""
    lost = np.zeros_like(examined.free)
    for side, compared in examined.sides.items():
        own, other = compared.infer.numpy(), compared.train.numpy()
        broken = ~np.isfinite(own)
        asked = [("not finite", "minus infinity or no number", broken)] if broken.any() else []
        for kind, what, tokens in [*asked, *find_repeated(own, other, examined.excess)]:
            if kind not in ("floor", "not finite") and examined.coarse[tokens].mean() > 0.5:
                continue  # numbers of few digits repeat
            where = examined.find(tokens, name_value(examined.names[side]))
            yield examined.report(kind, what, side, where, tokens)
            lost |= tokens if where is None else tokens | examined.hold(where)
    examined.free &= ~lost


def _every(tokens: Bools) -> Predicate:
    return Predicate((), 1.0, 1.0, int(tokens.sum()))


def _rows_moved(examined: _ColumnState) -> Iterator[Finding]:
    sides = examined.sides["infer"]
    order = find_row_order(sides)
    if len(order) < 2:
        return
    tokens = np.isin(sides.row.numpy(), list(order)) & examined.free
    steps = {source - row for row, source in order.items()}
    pairs = ", ".join(f"{row} ← {source}" for row, source in list(order.items())[:6])
    how = f"each that of the row {steps.pop():+d} from it" if len(steps) == 1 else f"{pairs}{' …' * (len(order) > 6)}"
    what = f"{len(order)} of {sides.lengths.numel()} rows have another row's values: {how}"
    yield examined.report("rows moved", what, None, examined.find(tokens), tokens)
    examined.free &= ~tokens


def _whole(examined: _ColumnState) -> Iterator[Finding]:
    """A formula for all tokens that are left, where their difference is more than rounding may make alike in all."""
    if not examined.free.any() or np.abs(examined.delta[examined.free]).mean() < _LEAST_OFF:
        return
    whole = _describe(examined, _every(examined.free), examined.free)
    if whole.kind != "off":
        yield whole
        examined.free &= False


def _separate(examined: _ColumnState) -> Iterator[Finding]:
    """Tokens that a predicate separates by how far they are off, and the formula for their values."""
    for _ in range(_ROUNDS):
        found = [examined.find(examined.excess > bound) for bound in _BOUNDS]
        where = max((one for one in found if one and one.atoms), key=lambda one: one.score, default=None)
        if where is None:
            return
        tokens = examined.hold(where)
        yield _describe(examined, where, tokens)
        examined.free &= ~tokens


def _describe(examined: _ColumnState, where: Predicate, tokens: Bools) -> Finding:
    """Finding about the values of some tokens, given the other side's: a formula, or how far they are off."""
    each = [(one, side) for side, values in examined.sides.items() if (one := find_formula(values, tokens)) is not None]
    best, side = min(each, key=lambda pair: round(pair[0].rank, 3), default=(None, "infer"))
    both: tuple[ColumnSide, ColumnSide] = ("train", "infer") if side == "train" else ("infer", "train")
    mine, other = (f"{examined.names[one]}'s" for one in both)
    said = "" if best is None else f"{mine} values are {best.what.replace(OTHERS, other)}"
    if best is not None and best.left < EXACT:
        what = f"{said}; {best.left:.1%} of the difference is left so"
        return examined.report(best.kind, what, None, where, tokens)
    delta = examined.delta[tokens]
    rms = float(np.sqrt(np.square(delta).mean()))
    upwards = f"{np.mean(delta > 0):.0%} of them upwards on {examined.names['train']}'s side"
    what = f"off by {rms:.2g} nats (root mean square), {upwards}"
    hint = f"; {best.left:.0%} of that would be left if {said}" if best is not None and best.left < 0.5 else ""
    return examined.report("off", what + hint, None, where, tokens)
