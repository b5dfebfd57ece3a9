"""The smallest predicate that separates hit tokens from clean ones: rows, positions, ids, values, and what repeats."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
        repeats: True where it counts something, so that its remainder may matter.
        cost: Nats that naming it costs beyond others: what is a consequence of the damage is dear.
    """

    name: str
    values: Ints | Floats
    repeats: bool = False
    cost: float = 0.0

    @property
    def varies(self) -> bool:
        """True where not all tokens have the same value."""
        return bool((self.values != self.values[:1]).any())


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
class _AtomSet:
    """Conditions, which tokens they hold for, and what naming them costs."""

    atoms: tuple[Atom, ...]
    held: Bools
    cost: float = 0.0
    score: float = 0.0


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
    search = _PredicateSearch(hit_M, features)
    single = sorted(search.extend(_AtomSet((), np.ones(tokens, bool))), key=lambda one: -one.score)
    pairs = [both for first in _beam(single) for both in search.extend(first)]
    best = max([*single, *pairs], key=lambda one: one.score, default=None)
    if best is None or best.score < _LEAST_GAIN:
        return None
    inside = int(best.held.sum())
    both = int((best.held & hit_M).sum())
    found = Predicate(best.atoms, both / inside, both / hits, inside, best.score)
    return found if min(found.precision, found.recall) >= _LEAST_SHARE else None


def _beam(single: Sequence[_AtomSet]) -> list[_AtomSet]:
    """The best conditions, at most two on each feature."""
    taken = Counter[str]()
    chosen = list[_AtomSet]()
    for one in single:
        taken[one.atoms[0].feature] += 1
        if taken[one.atoms[0].feature] <= _MOST_OF_ONE:
            chosen.append(one)
    return chosen[:_BEAM]


class _PredicateSearch:
    """The conditions on some features that separate hit tokens best."""

    def __init__(self, hit_M: Bools, features: Sequence[Feature]) -> None:
        self._hit, self._features, self._hits = hit_M, features, int(hit_M.sum())
        count = np.arange(hit_M.size + 1)
        self._xlogx = count * np.log(np.maximum(count, 1))

    def extend(self, first: _AtomSet) -> Iterator[_AtomSet]:
        """Yields the candidate with the best further conditions on each other feature."""
        others = [one for one in self._features if one.name not in {atom.feature for atom in first.atoms}]
        within = self._hit[first.held]
        for feature in others if within.any() else ():
            values, place = np.unique(feature.values[first.held], return_inverse=True)
            if values.size < 2:
                continue
            count = np.bincount(place, minlength=values.size)
            hit = np.bincount(place[within], minlength=values.size)
            for atom in self._atoms(feature, values, count, hit):
                held = first.held & atom.holds({feature.name: feature})
                cost = first.cost + _cost(atom, feature, values.size, len(others))
                gain = float(self._gain(held.sum(), (held & self._hit).sum()))
                yield _AtomSet((*first.atoms, atom), held, cost, gain - cost)

    def _atoms(self, feature: Feature, values: NDArray[Any], count: Ints, hit: Ints) -> Iterator[Atom]:
        """The best set of values, the best stretches of them, and the best set of remainders."""
        chosen = self._best_set(count, hit)
        if chosen.size:
            yield Atom(feature.name, values=tuple(sorted(map(float, values[chosen]))))
        for low, high in {_best_interval(count, hit, rate) for rate in _RATES}:
            if low < high and (low > 0 or high < values.size - 1):
                first = -math.inf if low == 0 else float(values[low])
                yield Atom(feature.name, None, (), first, math.inf if high == values.size - 1 else float(values[high]))
        scored = list[tuple[float, Atom]]()
        for modulus in _MODULI if feature.repeats else ():
            if modulus > values[-1] - values[0]:
                break
            n, h = (np.bincount(values % modulus, x, minlength=modulus).astype(np.int64) for x in (count, hit))
            chosen = self._best_set(n, h)
            if 0 < chosen.size < modulus:
                atom = Atom(feature.name, modulus, tuple(sorted(map(float, chosen))))
                gain = float(self._gain(n[chosen].sum(), h[chosen].sum()))
                scored.append((gain - _cost(atom, feature, values.size, 1), atom))
        if scored:
            yield max(scored, key=lambda pair: pair[0])[1]

    def _best_set(self, count: Ints, hit: Ints) -> Ints:
        """The values with the highest rates of hits, as many as pay for being named."""
        there = np.flatnonzero(hit)
        order = there[np.argsort(-(hit[there] / count[there]) - 1e-9 * hit[there], kind="stable")][: 4 * _MOST_VALUES]
        if not order.size:
            return order
        gain = self._gain(np.cumsum(count[order]), np.cumsum(hit[order]))
        most = int(np.argmax(gain - np.arange(1, order.size + 1) * math.log(count.size + 1)))
        return order[: most + 1] if most < _MOST_VALUES else order[:0]

    def _gain(self, n: Ints, h: Ints) -> Floats:
        """Log-likelihood that hits gain from a rate inside and one outside, nats; negative where the inside has fewer.

        Args:
            n: Tokens inside.
            h: Hit tokens inside.
        """
        x, hits, tokens = self._xlogx, self._hits, self._hit.size
        inside = x[h] + x[n - h] - x[n]
        outside = x[hits - h] + x[tokens - n - hits + h] - x[tokens - n]
        gain = inside + outside - (x[hits] + x[tokens - hits] - x[tokens])
        return np.where(h * (tokens - n) >= (hits - h) * n, gain, -gain)


def _best_interval(count: Ints, hit: Ints, rate: float) -> tuple[int, int]:
    """The stretch of values that has most hits beyond a rate; indices, both included."""
    total = np.concatenate([[0.0], np.cumsum(hit - rate * count)])
    least = np.minimum.accumulate(total[:-1])
    end = int(np.argmax(total[1:] - least))
    return int(np.argmin(total[: end + 1])), end


def _cost(atom: Atom, feature: Feature, size: int, features: int) -> float:
    """Nats for naming an atom: the logarithm of how many are as simple."""
    if atom.values:
        among = atom.modulus or size
        own = len(atom.values) * math.log(among + 1) + (math.log(len(_MODULI)) if atom.modulus else 0.0)
    else:
        own = math.log(size) * ((atom.low > -math.inf) + (atom.high < math.inf))
    return own + math.log(features) + 1.0 + feature.cost
