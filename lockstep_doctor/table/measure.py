"""Measures the cells of the table: backends draw responses, all backends rescore them token by
token, and pairs are judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from lockstep.config import DType
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep_doctor.statistics import TokenComparison
from lockstep_doctor.table.base import Backend, BackendConditions, Side
from lockstep_doctor.table.options import DoctorGrid, DoctorLimits
from lockstep_doctor.table.plan import TableCell, clusters_of, rescore_limit
from lockstep_doctor.table.verdict import (
    LEAST_CLUSTERS,
    CellJudgment,
    Clause,
    judge_cell,
    judge_tails,
)

PASS_TOKENS = 16_384
"""Limit of tokens per scoring pass, to bound memory; a single sequence may be longer."""
REPEATED = 25
"""Tokens per response in a repeated request."""

ComparisonKind = Literal["shaped", "plain"]
"""Scored under the sampling distribution, or at temperature 1 over all tokens."""
CellState = Literal["measured", "beyond context", "cut by budget"]
BackendPair = tuple[str, str]
"""Names of the training side and the inference side."""
_FEWEST = 2 * LEAST_CLUSTERS
"""Clusters of a cell cut into segments.

In a table of 72 cells, 8 clusters sometimes left healthy cells inconclusive; 16 never did.
"""
SHORTEST_SEGMENT = 250
"""Minimum tokens of a segment that counts as an independent sequence, in cells with fewer than
`LEAST_CLUSTERS` sequences.
"""


@dataclass(frozen=True)
class DrawnSamples:
    """Tokens drawn by one backend, and all backends' log-probabilities of them.

    M of the N tokens were drawn.

    Attributes:
        cluster: Ids shared by sequences that answer the same prompt, int64 [B].
        tensors: Tensors by their names in files, fp32 [M]: `decoded`, log-probabilities from the
            drawer's decoding, nats; `kind.backend`, log-probabilities by prefill;
            `kind.rounding.type`, |Δ| from rounding alone.
    """

    drawer: str
    batch: Batch
    cluster: Tensor
    tensors: Mapping[str, Tensor]
    dtypes: Mapping[str, DType]

    def comparison_kind(self, train: str, infer: str) -> ComparisonKind:
        """Returns the kind of a comparison: `shaped` if both sides support it."""
        needed = {train, infer} - ({self.drawer} if infer == self.drawer else set())
        if all(f"shaped.{name}" in self.tensors for name in needed):
            return "shaped"
        return "plain"

    def column_names(self, train: str, infer: str) -> tuple[str, str]:
        """Returns the names of a pair's two columns in `tensors`."""
        kind = self.comparison_kind(train, infer)
        decoded = kind == "shaped" and infer == self.drawer
        return f"{kind}.{train}", "decoded" if decoded else f"{kind}.{infer}"

    def compare_pair(self, train: str, infer: str) -> TokenComparison:
        """Returns a pair's two columns.

        The inference side's column comes from decoding if it drew the tokens, else from prefill.
        """
        of_train, of_infer = (self.tensors[name] for name in self.column_names(train, infer))
        mask = self.batch.mask
        return TokenComparison(
            of_train.double(),
            of_infer.double(),
            self.batch.per_sample(mask.long()),
            self.batch.position[mask],
            self.cluster,
        )

    def find_distribution(self, train: str, infer: str) -> SamplingParams | None:
        """Returns the distribution that a pair's tokens were drawn from and scored under.

        If they were scored under a different one, the result is greedy: as for greedy tokens, no
        side's probabilities of the drawn tokens sum to 1.
        """
        sampling = self.batch.sampling
        if sampling is None or sampling.unshaped or self.comparison_kind(train, infer) == "shaped":
            return sampling
        return SamplingParams(sampling.max_tokens, temperature=0.0)

    def rounding_floor(self, train: str, infer: str) -> Tensor:
        """Returns a pair's |Δ| from rounding alone, per token, nats, fp32 [M]."""
        kind = self.comparison_kind(train, infer)
        return torch.hypot(
            *(self.tensors[f"{kind}.rounding.{self.dtypes[name]}"] for name in (train, infer))
        )


@dataclass(frozen=True)
class RepeatResult:
    """Result of repeating the same request.

    Attributes:
        same_tokens: Number of rounds with the first round's tokens, the first included.
        bitwise: Number of those rounds whose log-probabilities, by decoding and by prefill, are
            also bitwise equal.
        rms: Root mean square difference of prefill log-probabilities from the first round, nats.
    """

    cell: str
    backend: str
    times: int
    same_tokens: int
    bitwise: int
    rms: float


class CellMeasurer:
    """Measures cells.

    Args:
        witness: Plain `transformers` on the same model, to measure rounding.

    Attributes:
        generating: Names of the backends that draw responses.
        dtypes: Compute types by backend name.
    """

    def __init__(self, backends: Mapping[str, Backend], witness: Backend, grid: DoctorGrid) -> None:
        self.backends = backends
        self.witness = witness
        self.grid = grid
        self.generating = find_generating(backends)
        self.dtypes: dict[str, DType] = {
            name: backend.list_settings()["dtype"] for name, backend in backends.items()
        }

    def list_drawers(self, cell: TableCell) -> Sequence[str]:
        """Returns the names of backends that draw the cell's responses; the inference engine comes
        last.
        """
        if cell.length <= self.grid.all_draw_to:
            return self.generating
        return self.generating[-1:]

    def list_scorers(
        self, sampling: SamplingParams, drawer: str
    ) -> dict[ComparisonKind, list[str]]:
        """Returns the backends that score a drawer's samples, by kind; `plain` is added if a
        backend supports only that.

        The last backend that generates is the inference side of its pairs: on its own samples its
        decoding is compared.
        """
        every = self.backends.items()
        shaped: list[str] = []
        for name, backend in every:
            if sampling.unshaped or "shaped" in backend.capabilities:
                shaped.append(name)
        alike = self.backends.keys() <= {*shaped, *({drawer} & {self.generating[-1]})}
        if alike:
            return {"shaped": shaped}
        return {"shaped": shaped, "plain": list(self.backends)}

    def draw_samples(self, cell: TableCell, requests: Sequence[Request]) -> list[DrawnSamples]:
        """Draws with each of the cell's drawers, and scores the samples with all backends."""
        kept = range(min(len(requests), rescore_limit(cell, self.grid)))
        found: list[DrawnSamples] = []
        for name in self.list_drawers(cell):
            drawn = self.backends[name].generate(
                requests, cell.sampling, BackendConditions(batch_size=cell.batch_size)
            )
            found.append(
                self._rescore_batch(
                    cell, name, drawn.select(kept), clusters_of(requests[: len(kept)])
                )
            )
        return found

    def _rescore_batch(
        self, cell: TableCell, drawer: str, batch: Batch, cluster: Tensor
    ) -> DrawnSamples:
        """Scores a drawer's samples with all backends, and rounding with the witness."""
        tensors = {"decoded": batch["sampler_logprob"][batch.mask]}
        room = max(1, PASS_TOKENS // int(batch.lengths.max()))
        usual = BackendConditions(batch_size=min(cell.batch_size, room))
        for kind, names in self.list_scorers(cell.sampling, drawer).items():
            for name in names:
                asked = _adapt_batch(self.backends[name], kind, batch)
                tensors[f"{kind}.{name}"] = self.backends[name].score(asked, usual)[batch.mask]
            asked = _adapt_batch(self.witness, kind, batch)
            for dtype in sorted(set(self.dtypes.values())):
                first, second = floor_conditions(dtype)
                exact = self.witness.score(asked, usual.override_with(first))
                rounded = self.witness.score(asked, usual.override_with(second))
                tensors[f"{kind}.rounding.{dtype}"] = (exact - rounded).abs()[batch.mask]
        return DrawnSamples(drawer, batch, cluster, tensors, self.dtypes)

    def repeat_requests(
        self, cell: TableCell, name: str, requests: Sequence[Request]
    ) -> RepeatResult:
        """Generates the beginning of one batch of a cell `grid.repeats` times, and scores the first
        round as often.
        """
        backend = self.backends[name]
        times = self.grid.repeats
        conditions = BackendConditions(batch_size=cell.batch_size)
        sampling = replace(cell.sampling, max_tokens=min(cell.decoded_tokens, REPEATED))
        batch = requests[: cell.batch_size]
        rounds = [backend.generate(batch, sampling, conditions) for _ in range(times)]
        asked = _adapt_batch(backend, "shaped", rounds[0])
        scores = [backend.score(asked, conditions) for _ in range(times)]
        same_tokens = 0
        bitwise = 0
        for drawn, score in zip(rounds, scores, strict=True):
            if torch.equal(drawn.tokens, rounds[0].tokens):
                same_tokens += 1
                same = torch.equal(drawn["sampler_logprob"], rounds[0]["sampler_logprob"])
                bitwise += same and torch.equal(score, scores[0])
        away = torch.stack(
            [(score - scores[0])[asked.mask] for score in scores[1:]] or [torch.zeros(1)]
        )
        return RepeatResult(
            cell.name,
            name,
            times,
            same_tokens,
            bitwise,
            float(away.double().square().mean().sqrt()),
        )


def find_generating(backends: Mapping[str, Backend]) -> list[str]:
    """Returns the names of backends that draw responses."""
    return [name for name, backend in backends.items() if "generate" in backend.capabilities]


def floor_conditions(dtype: DType) -> tuple[BackendConditions, BackendConditions]:
    """Returns the conditions of the witness's two passes: fp32 and `dtype`; for fp32, padded, and
    unpadded with a different kernel.
    """
    exact = BackendConditions(dtype="fp32")
    return exact, BackendConditions(
        dtype="fp32", batch_size=1, kernel="eager"
    ) if dtype == "fp32" else BackendConditions(dtype=dtype)


def _adapt_batch(backend: Backend, kind: ComparisonKind, batch: Batch) -> Batch:
    """The batch for a backend to score, without sampling parameters if it or the kind does not use
    them.
    """
    if kind == "shaped" and "shaped" in backend.capabilities:
        return batch
    return replace(batch, sampling=None)


@dataclass(frozen=True)
class TableRow:
    """A cell and its measurements.

    Attributes:
        drawn: Samples of each drawer.
        repeats: Repeats of each backend that generates, if the cell has the shortest length.
    """

    cell: TableCell
    state: CellState
    drawn: tuple[DrawnSamples, ...] = ()
    repeats: tuple[RepeatResult, ...] = ()
    seconds: float = 0.0

    def find_samples(self, drawer: str) -> DrawnSamples | None:
        """Returns a backend's samples; None if it did not draw."""
        return next((drawn for drawn in self.drawn if drawn.drawer == drawer), None)


def pairs_of(backends: Mapping[str, Backend]) -> list[BackendPair]:
    """All pairs of backends with at least one that generates.

    The training side is the earlier backend, or the one that cannot generate.

    Raises:
        ValueError: No backend generates.
    """
    draw = find_generating(backends)
    if not draw:
        raise InputError(
            f"none of {', '.join(backends)} generates; add one to backends, such as torch"
        )
    pairs: list[BackendPair] = []
    for first, second in combinations(backends, 2):
        if second in draw:
            pairs.append((first, second))
        elif first in draw:
            pairs.append((second, first))
    return pairs


def judge_rows(
    rows: Sequence[TableRow], pairs: Sequence[BackendPair], limits: DoctorLimits
) -> dict[tuple[int, BackendPair], CellJudgment]:
    """Judges all measured cells of all pairs, by cell number and pair; rare events are counted over
    a pair's cells.
    """
    measured = {number: row for number, row in enumerate(rows) if row.state == "measured"}
    measured_rows = list(measured.values())
    methods = {row.cell.method.name for row in measured_rows}
    found: dict[tuple[int, BackendPair], CellJudgment] = {}
    for pair in pairs if measured else ():
        tails = {method: _judge_tails(measured_rows, pair, method, limits) for method in methods}
        for number, row in measured.items():
            samples = samples_for(row, pair)
            drawn = dict[Side, tuple[TokenComparison, Tensor | None]]()
            for side, one in samples.items():
                compared = make_independent(one.compare_pair(*pair))
                drawn[side] = (compared, one.rounding_floor(*pair))
            sampling = samples["infer"].find_distribution(*pair)
            found[number, pair] = judge_cell(
                drawn, limits, len(measured) * len(pairs), sampling, tails[row.cell.method.name]
            )
    return found


def _judge_tails(
    rows: Sequence[TableRow], pair: BackendPair, method: str, limits: DoctorLimits
) -> Clause:
    """The outlier clause over all cells of a pair; if it does not pass, over the cells of one
    method.

    Only under top-k and top-p does rounding move tokens across an edge, so other methods are judged
    separately.
    """
    every = list[TokenComparison]()
    own = list[TokenComparison]()
    for row in rows:
        parts = _list_comparisons(row, pair)
        every += parts
        if row.cell.method.name == method:
            own += parts
    clause = judge_tails(every, limits)
    if clause.verdict == "PASS":
        return clause
    return judge_tails(own, limits)


def counts_segments(row: TableRow, pair: BackendPair) -> bool:
    """True if a pair is judged in a row by segments, because sequences are few."""
    return any(make_independent(one) is not one for one in _list_comparisons(row, pair))


def make_independent(compared: TokenComparison) -> TokenComparison:
    """Returns the comparison clustered for bounds: by sequence, or by segment if a cell has few
    long sequences.
    """
    few = compared.lengths.numel() < LEAST_CLUSTERS
    count = max(LEAST_CLUSTERS, min(_FEWEST, compared.train.numel() // SHORTEST_SEGMENT))
    if few:
        return compared.in_segments(count, SHORTEST_SEGMENT)
    return compared


def samples_for(row: TableRow, pair: BackendPair) -> Mapping[Side, DrawnSamples]:
    """Returns the samples of each side; shared samples stand in for an inference side that did not
    draw.
    """
    own = row.find_samples(pair[0])
    other = row.find_samples(pair[1]) or row.drawn[-1]
    found: dict[Side, DrawnSamples] = {"infer": other}
    if own is None:
        return found
    return {**found, "train": own}


def _list_comparisons(row: TableRow, pair: BackendPair) -> list[TokenComparison]:
    """Returns a pair's comparisons in a row, one for each set of samples."""
    return [drawn.compare_pair(*pair) for drawn in samples_for(row, pair).values()]
