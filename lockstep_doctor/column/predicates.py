"""The smallest predicate that separates hit tokens from clean ones: rows, positions, ids, values, and what repeats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_MODULI = (*range(2, 65), 96, 128, 192, 256, 384, 512, 1024)
_MOST_VALUES = 8
"""Most values of a set that a predicate may name."""
_BEAM = 12
_MOST_OF_ONE = 2
_LEAST_GAIN = 12.0
"""Nats beyond what naming the predicate costs; at e^-12 chance does not reach it in any search."""
_LEAST_SHARE = 0.55
"""Precision and recall, below which a predicate separates nothing."""
_RATES = (0.6, 0.2)
"""Rates of hits that a stretch of values must exceed; the lower one for a condition that needs a second."""


@dataclass(frozen=True)
class Feature:
    """A number of each token that a predicate may speak of.

    Attributes:
        name: In words.
        values: Of each token, [M].
        repeats: True where it counts something, so that its remainder may matter.
        cost: Nats that naming it costs beyond others: what is a consequence of the damage is dear.
    """

    name: str
    values: NDArray[np.int64] | Floats
    repeats: bool = False
    cost: float = 0.0


@dataclass(frozen=True)
class Atom:
    """A condition on one feature.

    Attributes:
        feature: Its name.
        modulus: Of the remainder that is meant; None: the value itself.
        values: The feature is one of these; empty: it lies from `low` to `high`.
        low: Infinite where there is no bound, like `high`.
        high: Included.
    """

    feature: str
    modulus: int | None = None
    values: tuple[float, ...] = ()
    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        name = self.feature if self.modulus is None else f"{self.feature} mod {self.modulus}"
        if len(self.values) == 1:
            return f"{name} = {self.values[0]:.6g}"
        if self.values:
            return f"{name} in {{{', '.join(f'{value:.6g}' for value in self.values)}}}"
        if self.low == -math.inf:
            return f"{name} ≤ {self.high:.6g}"
        return f"{name} ≥ {self.low:.6g}" if self.high == math.inf else f"{self.low:.6g} ≤ {name} ≤ {self.high:.6g}"

    def holds(self, features: Mapping[str, Feature]) -> Bools:
        """Returns which tokens it is true of, [M]."""
        value = features[self.feature].values
        value = value if self.modulus is None else value % self.modulus
        return np.isin(value, self.values) if self.values else (value >= self.low) & (value <= self.high)


@dataclass(frozen=True)
class Predicate:
    """Conditions that hold together.

    Attributes:
        atoms: Empty: every token.
        precision: Share of its tokens that are hit.
        recall: Share of the hit tokens that are its own.
        tokens: How many it is true of.
        score: Nats by which it beats chance.
    """

    atoms: tuple[Atom, ...]
    precision: float
    recall: float
    tokens: int
    score: float = 0.0

    def __str__(self) -> str:
        return " and ".join(map(str, self.atoms)) or "every token"

    def holds(self, features: Mapping[str, Feature]) -> Bools:
        """Returns which tokens it is true of, [M]."""
        size = next(iter(features.values())).values.size
        return np.logical_and.reduce([np.ones(size, bool), *(atom.holds(features) for atom in self.atoms)])


@dataclass(frozen=True)
class _Scored:
    score: float
    atoms: tuple[Atom, ...]
    held: Bools


def find_predicate(hit_M: Bools, features: Sequence[Feature]) -> Predicate | None:
    """Finds the predicate that tells most about which tokens are hit, less what it costs to name it.

    The measure is the log-likelihood that hits gain from two rates, one inside and one outside, minus the logarithm of
    how many predicates are as simple; so it is the smallest one where several separate alike.

    Returns:
        None where no predicate has precision and recall; with no atoms where nearly all tokens are hit.
    """
    tokens, hits = hit_M.size, int(hit_M.sum())
    if not hits:
        return None
    if hits > 0.97 * tokens:
        return Predicate((), hits / tokens, 1.0, tokens)
    everywhere = np.ones(tokens, bool)
    single = sorted(_atoms(hit_M, everywhere, features), key=lambda one: -one.score)
    beam = _distinct(single)
    pairs = [
        _Scored(both.score - first.cost, (*first.atoms, *both.atoms), both.held)
        for first in (_Costly(one, features) for one in beam)
        for both in _atoms(hit_M, first.held, [f for f in features if f.name != first.atoms[0].feature])
    ]
    best = max([*single, *pairs], key=lambda one: one.score, default=None)
    if best is None or best.score < _LEAST_GAIN:
        return None
    inside = int(best.held.sum())
    both = int((best.held & hit_M).sum())
    found = Predicate(best.atoms, both / inside, both / hits, inside, best.score)
    return found if min(found.precision, found.recall) >= _LEAST_SHARE else None


class _Costly:
    """A first atom of two, with what naming it costs."""

    def __init__(self, one: _Scored, features: Sequence[Feature]) -> None:
        self.atoms, self.held = one.atoms, one.held
        feature = next(f for f in features if f.name == one.atoms[0].feature)
        self.cost = _cost(one.atoms[0], feature, np.unique(feature.values).size, len(features))


def _distinct(single: Sequence[_Scored]) -> list[_Scored]:
    """The best atoms, of each feature at most two."""
    count: Counter[str] = Counter()
    chosen = list[_Scored]()
    for one in single:
        count[one.atoms[0].feature] += 1
        if count[one.atoms[0].feature] <= _MOST_OF_ONE:
            chosen.append(one)
    return chosen[:_BEAM]


def _atoms(hit_M: Bools, inside_M: Bools, features: Sequence[Feature]) -> Iterator[_Scored]:
    """The best atoms of each feature among the tokens inside, scored over all tokens."""
    tokens, hits = hit_M.size, int(hit_M.sum())
    within = hit_M[inside_M]
    if not within.any():
        return
    for feature in features:
        values, place = np.unique(feature.values[inside_M], return_inverse=True)
        if values.size < 2:
            continue
        count = np.bincount(place, minlength=values.size).astype(float)
        hit = np.bincount(place, within, minlength=values.size).astype(np.float64)
        for atom in _candidates(feature, values, count, hit, tokens, hits):
            held = inside_M & atom.holds({feature.name: feature})
            score = float(_gain(float(held.sum()), float((held & hit_M).sum()), tokens, hits))
            yield _Scored(score - _cost(atom, feature, values.size, len(features)), (atom,), held)


def _candidates(
    feature: Feature, values: NDArray[np.generic], count: Floats, hit: Floats, tokens: int, hits: int
) -> Iterator[Atom]:
    chosen = _best_set(count, hit, tokens, hits)
    if len(chosen):
        yield Atom(feature.name, values=tuple(sorted(float(values[place]) for place in chosen)))
    for low, high in {_best_interval(count, hit, rate) for rate in _RATES}:
        first = -math.inf if low == 0 else float(values[low])
        last = math.inf if high == values.size - 1 else float(values[high])
        if high > low and (first > -math.inf or last < math.inf):
            yield Atom(feature.name, low=first, high=last)
    if not feature.repeats:
        return
    best: tuple[float, Atom] | None = None
    for modulus in _MODULI:
        if modulus >= int(values[-1]) - int(values[0]) + 1:
            break
        rest = values.astype(np.int64) % modulus
        n, h = (np.bincount(rest, x, minlength=modulus).astype(np.float64) for x in (count, hit))
        chosen = _best_set(n, h, tokens, hits)
        if not len(chosen) or len(chosen) == modulus:
            continue
        atom = Atom(feature.name, modulus, tuple(sorted(float(place) for place in chosen)))
        gain = float(_gain(n[chosen].sum(), h[chosen].sum(), tokens, hits)) - _cost(atom, feature, values.size, 1)
        if best is None or gain > best[0]:
            best = gain, atom
    if best is not None:
        yield best[1]


def _best_set(count: Floats, hit: Floats, tokens: int, hits: int) -> NDArray[np.int64]:
    """The values with the highest rates of hits, as many as pay for being named."""
    there = np.flatnonzero(hit)
    order = there[np.argsort(-(hit[there] / count[there]) - 1e-9 * hit[there], kind="stable")][: 4 * _MOST_VALUES]
    if not order.size:
        return order
    gain = _gain(np.cumsum(count[order]), np.cumsum(hit[order]), tokens, hits)
    most = int(np.argmax(gain - np.arange(1, order.size + 1) * math.log(count.size + 1)))
    return order[: most + 1] if most < _MOST_VALUES else order[:0]


def _best_interval(count: Floats, hit: Floats, rate: float) -> tuple[int, int]:
    """The stretch of values that has most hits beyond a rate; indices, both included."""
    total = np.concatenate([[0.0], np.cumsum(hit - rate * count)])
    least = np.minimum.accumulate(total[:-1])
    end = int(np.argmax(total[1:] - least))
    return int(np.argmin(total[: end + 1])), end


def _gain(n: float | Floats, h: float | Floats, tokens: int, hits: int) -> Floats:
    """Log-likelihood that hits gain from a rate inside and one outside, nats; negative where the inside has fewer."""
    n, h = np.asarray(n, float), np.asarray(h, float)
    out_n, out_h = tokens - n, hits - h
    gain = _likelihood(n, h) + _likelihood(out_n, out_h) - _likelihood(np.float64(tokens), np.float64(hits))
    return np.where(h * out_n >= out_h * n, gain, -gain)


def _likelihood(n: Floats | np.float64, h: Floats | np.float64) -> Floats:
    return _xlogx(h) + _xlogx(n - h) - _xlogx(n)


def _xlogx(x: Floats | np.float64) -> Floats:
    return np.where(x > 0, x * np.log(np.maximum(x, 1e-300)), 0.0)


def _cost(atom: Atom, feature: Feature, size: int, features: int) -> float:
    """Nats for naming an atom: the logarithm of how many are as simple."""
    if atom.values:
        among = atom.modulus or size
        own = len(atom.values) * math.log(among + 1) + (math.log(len(_MODULI)) if atom.modulus else 0.0)
    else:
        own = math.log(size) * ((atom.low > -math.inf) + (atom.high < math.inf))
    return own + math.log(features) + 1.0 + feature.cost
