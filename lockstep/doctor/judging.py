"""Verdicts on each measured cell and pair, and on the whole table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from torch import Tensor

from lockstep.doctor.base import Backend, Side
from lockstep.doctor.measure import Drawn, Repeated, find_generating
from lockstep.doctor.options import DoctorLimits
from lockstep.doctor.plan import Cell
from lockstep.doctor.verdict import LEAST_CLUSTERS, CellJudgement, judge, judge_tails
from lockstep.errors import InputError
from lockstep_doctor.statistics import Compared

State = Literal["measured", "beyond context", "cut by budget"]
Pair = tuple[str, str]
"""Training side and inference side."""
_FEWEST = 2 * LEAST_CLUSTERS
"""Clusters of a cell. Among 8, bounds for a table of 72 cells left healthy ones open now and then; among 16 never."""
SHORTEST_SEGMENT = 250
"""Tokens of a sequence that stand for an independent one, where a cell has fewer than `LEAST_CLUSTERS` of those."""


@dataclass(frozen=True)
class TableRow:
    """A cell, and what was measured there.

    Attributes:
        drawn: By each backend that generates.
        repeats: Of each backend that generates, where the cell is one of the shortest.
    """

    cell: Cell
    state: State
    drawn: tuple[Drawn, ...] = ()
    repeats: tuple[Repeated, ...] = ()
    seconds: float = 0.0

    def by(self, drawer: str) -> Drawn | None:
        """Returns a backend's samples, if it draws."""
        return next((drawn for drawn in self.drawn if drawn.drawer == drawer), None)


def pairs_of(backends: Mapping[str, Backend]) -> list[Pair]:
    """Each with each; the earlier one is the training side, or the one that draws no responses, of which one may be.

    Raises:
        ValueError: If no backend draws any.
    """
    draw = find_generating(backends)
    if not draw:
        raise InputError(f"none of {', '.join(backends)} draws responses; name one more in backends, such as torch")
    both = [pair for pair in combinations(backends, 2) if set(pair) & set(draw)]
    return [pair if pair[1] in draw else (pair[1], pair[0]) for pair in both]


def judge_rows(
    rows: Sequence[TableRow], pairs: Sequence[Pair], limits: DoctorLimits
) -> dict[tuple[int, Pair], CellJudgement]:
    """Judges all measured cells of all pairs together, by number and pair: what is rare is counted over its cells."""
    measured = [(number, row) for number, row in enumerate(rows) if row.state == "measured"]
    found: dict[tuple[int, Pair], CellJudgement] = {}
    for pair in pairs if measured else ():
        tails = judge_tails([part for _, row in measured for part in _parts(row, pair)], limits)
        for number, row in measured:
            samples = samples_for(row, pair)
            drawn: dict[Side, tuple[Compared, Tensor | None]] = {
                side: (make_independent(one.compare(*pair)), one.floor(*pair)) for side, one in samples.items()
            }
            sampling = samples["infer"].distribution(*pair)
            found[number, pair] = judge(drawn, limits, len(measured) * len(pairs), sampling, tails)
    return found


def counts_segments(row: TableRow, pair: Pair) -> bool:
    """True if what a pair says in a row is judged by segments of too few sequences."""
    return any(make_independent(one) is not one for one in _parts(row, pair))


def make_independent(compared: Compared) -> Compared:
    """Returns the clusters for bounds: sequences, or segments of them where a cell has few and long ones."""
    few = compared.lengths.numel() < LEAST_CLUSTERS
    count = max(LEAST_CLUSTERS, min(_FEWEST, compared.train.numel() // SHORTEST_SEGMENT))
    return compared.in_segments(count, SHORTEST_SEGMENT) if few else compared


def samples_for(row: TableRow, pair: Pair) -> Mapping[Side, Drawn]:
    """Returns the samples of each side; the shared ones stand in for an inference side that drew none."""
    own, other = row.by(pair[0]), row.by(pair[1]) or row.drawn[-1]
    found: dict[Side, Drawn] = {"infer": other}
    return found if own is None else {**found, "train": own}


def _parts(row: TableRow, pair: Pair) -> list[Compared]:
    """Returns a pair's comparisons in a row, one for each set of samples."""
    return [drawn.compare(*pair) for drawn in samples_for(row, pair).values()]
