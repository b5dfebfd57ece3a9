"""Curves of a measurement: its columns, millions of tokens perhaps, as a few hundred numbers to plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.report.columns import pack, shorten
from lockstep.report.doctor_folder import Columns, Numbers
from lockstep.report.log import plain

Decode = Callable[[Sequence[int]], str]

_BINS = 48
_POINTS = 120  # of a survival curve
_MAP_ROWS, _MAP_COLUMNS = 48, 128
_WORST = 20
_BEFORE, _AFTER = 16, 6  # tokens of context


def pack_drawn(columns: Columns, decode: Decode | None) -> bytes:
    """Packs all plots of one set of tokens; `page/data.js` unpacks them.

    Returns:
        `pack`ed: a header with `tokens`, `sequences`, `odd` (tokens whose Δ is not finite), bins of `index`, `position`
        and `logprob`, `survival` and `floor_survival`, `worst`, and `map` (its `rows` and `edges`); and the column
        `map`, row by row.
    """
    size, floor = columns.size, columns.floor
    rows, edges, cells = _map(columns)
    header = {
        "tokens": int(size.size),
        "sequences": int(columns.lengths.size),
        "odd": int((~np.isfinite(size)).sum()),
        "index": _bins(columns.index, _integer_edges(columns.index), size, floor),
        "position": _bins(columns.position, _integer_edges(columns.position), size, floor),
        "logprob": _bins(columns.infer, _equal_edges(columns.infer), size, floor),
        "survival": _survival(size),
        "floor_survival": _survival(floor),
        "worst": worst(columns, decode),
        "map": {"rows": rows, "edges": edges},
    }
    return pack(_plain(header), {"map": shorten(cells.ravel())})


def worst(columns: Columns, decode: Decode | None) -> list[dict[str, Any]]:
    """The tokens with the largest |Δ|, those whose Δ is not finite first, each with the text around it."""
    order = np.argsort(-columns.size, kind="stable")[:_WORST]
    return [
        {
            "train": float(columns.train[at]),
            "infer": float(columns.infer[at]),
            "sequence": int(columns.row[at]),
            "index": int(columns.index[at]),
            **_in_context(columns.sequence(int(columns.row[at])).tolist(), int(columns.position[at]) - 1, decode),
        }
        for at in order
    ]


def _in_context(tokens: list[int], at: int, decode: Decode | None) -> dict[str, Any]:
    """A token between the texts before and after it; the text that it adds depends on those before."""
    first, last = max(at - _BEFORE, 0), at + 1 + _AFTER
    if decode is None:
        ids = [" ".join(map(str, part)) for part in (tokens[first:at], tokens[at + 1 : last])]
        return {"id": tokens[at], "before": ids[0] + " ", "token": str(tokens[at]), "after": " " + ids[1]}
    before, until, whole = decode(tokens[first:at]), decode(tokens[first : at + 1]), decode(tokens[first:last])
    if not (until.startswith(before) and whole.startswith(until)):  # a character is made of several tokens
        return {
            "id": tokens[at],
            "before": before,
            "token": decode([tokens[at]]),
            "after": decode(tokens[at + 1 : last]),
        }
    return {"id": tokens[at], "before": before, "token": until[len(before) :], "after": whole[len(until) :]}


def _integer_edges(place: Numbers) -> Numbers:
    """Bins whose first ones hold one place each, and that grow with their distance from the beginning."""
    if not place.size:
        return np.array([1, 2])
    return np.unique(np.geomspace(place.min(), place.max() + 1, _BINS + 1).round().astype(np.int64))


def _equal_edges(values: Numbers) -> Numbers:
    """Bins that hold as many tokens each, as far as tokens differ."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return np.array([-1.0, 0.0])
    edges = np.unique(np.quantile(finite, np.linspace(0, 1, _BINS + 1)))
    return np.append(edges[:-1], np.nextafter(edges[-1], np.inf)) if edges.size > 1 else edges[[0, 0]] + [0, 1]


def _bins(place: Numbers, edges: Numbers, size: Numbers, floor: Numbers) -> dict[str, list[float]]:
    """Returns, for each bin with tokens: the median place, median and 99th percentile of |Δ|, the floor's median."""
    inside = np.searchsorted(edges, place, side="right") - 1
    known = np.flatnonzero((inside >= 0) & (inside < edges.size - 1))  # a log-probability may be no number
    inside, count = inside[known], np.bincount(inside[known])
    begin, count = (np.cumsum(count) - count)[count > 0], count[count > 0]

    def quantile(values: Numbers, share: float) -> list[float]:
        """A quantile as one of each bin's values, so that infinities stay."""
        ordered = values[known][np.lexsort((values[known], inside))]
        return ordered[begin + np.ceil(share * (count - 1)).astype(np.int64)].astype(np.float64).tolist()

    return {
        "at": quantile(place, 0.5),
        "median": quantile(size, 0.5),
        "p99": quantile(size, 0.99),
        "floor": quantile(floor, 0.5),
    }


def _survival(size: Numbers) -> dict[str, list[float]]:
    """Returns the share of tokens whose |Δ| is at least x; points lie evenly on a logarithmic axis of shares."""
    falling = -np.sort(-size[np.isfinite(size) & (size > 0)])
    if not falling.size:
        return {"x": [], "share": []}
    ranks = np.unique(np.geomspace(1, falling.size, _POINTS).round().astype(np.int64))
    odd = int((~np.isfinite(size)).sum())
    return {"x": falling[ranks - 1].tolist(), "share": ((ranks + odd) / size.size).tolist()}


def _map(columns: Columns) -> tuple[list[int], list[int], Numbers]:
    """The largest |Δ| in each stretch of each response; of many sequences those with the largest mean.

    Returns:
        The sequences' numbers [R], the stretches' edges [C + 1], and the values [R, C]: NaN where nothing was scored,
        infinite where a Δ is not finite.
    """
    count = columns.lengths.size
    means = np.bincount(columns.row, columns.size, count) / np.maximum(np.bincount(columns.row, minlength=count), 1)
    rows = np.sort(np.argsort(-means, kind="stable")[:_MAP_ROWS])
    longest = int(columns.index.max(initial=1))
    edges = np.unique(np.linspace(1, longest + 1, _MAP_COLUMNS + 1).round().astype(np.int64))
    place = np.full(count, -1)
    place[rows] = np.arange(rows.size)
    shown = place[columns.row] >= 0
    stretch = np.searchsorted(edges, columns.index[shown], side="right") - 1
    cells = np.full((rows.size, edges.size - 1), -1.0)
    np.maximum.at(cells, (place[columns.row[shown]], stretch), columns.size[shown])
    return rows.tolist(), edges.tolist(), np.where(cells < 0, np.nan, cells)


def _plain(tree: Any) -> Any:
    """Floats to five digits; what is not finite in words, as in all our JSON."""
    match tree:
        case float():
            return plain(float(f"{tree:.5g}"))
        case Mapping():
            return {name: _plain(value) for name, value in tree.items()}
        case list():
            return [_plain(value) for value in tree]
        case _:
            return tree
