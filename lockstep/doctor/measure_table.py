"""`lockstep doctor table`: the guide's grid over every pair of backends, each cell with its interval and a verdict.

report.json, columns.safetensors   for programs, see `docs/doctor_report.md`
report.html           the page of them, with plots
table.md              for people
cells/               what is measured already, while the table is not whole
recipe.yaml, inputs.json, environment.json   every option, digests of model and prompts, versions and machine
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from safetensors.torch import save

from lockstep.config.loading import Loaded
from lockstep.doctor.backends.build import find_missing
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.base import Backend
from lockstep.doctor.estimate import TableCost, TableEstimate, peak_bytes
from lockstep.doctor.measure import Bench, Repeated, TableRow, judge_rows, pairs_of
from lockstep.doctor.options import DoctorRecipe
from lockstep.doctor.plan import (
    ROOM,
    Cell,
    PromptSource,
    cells_of,
    count_sequences,
    put_text_before,
    requests_for,
    rescore_limit,
)
from lockstep.doctor.report import Cells, TableResult, columns_of, describe, markdown, tree_of, write_page
from lockstep.doctor.session import open_session
from lockstep.models.folder import read_config, skeleton
from lockstep.plan.sizes import Sizes
from lockstep.report.doctor_folder import COLUMNS, REPORT
from lockstep.report.progress import Progress
from lockstep.whole_files import write_whole

TABLE = "table.md"


def measure_and_report(loaded: Loaded) -> TableResult:
    """Measures a table, prints it, and leaves the report.

    Raises:
        ChangedError: If the folder holds a report on something else.
        ValueError: If the model or its prompts cannot be used.
    """
    with open_session(loaded) as (results, backends, shown):
        cells = Cells(results.folder)
        found = measure_table(loaded.expect(DoctorRecipe), backends, shown, cells)
        with shown.phase("write"):
            _write(results.folder, tree_of(found, loaded, results.inputs), found)
            page = write_page(results.folder)
            cells.drop()
    print(markdown(found), end="")
    print(f"report: {page}")
    return found


def measure_table(
    recipe: DoctorRecipe, backends: Mapping[str, Backend], shown: Progress, cells: Cells | None = None
) -> TableResult:
    """Measures and judges all cells of a recipe.

    Args:
        backends: What is compared, by name; the earlier of a pair is the training side.
        cells: Where each is kept as soon as it is measured, and those are that were measured before.
    """
    return _Measurement(recipe, backends, shown, cells).measure()


class _Measurement:
    """Goes through the cells of a recipe, shortest first."""

    def __init__(
        self, recipe: DoctorRecipe, backends: Mapping[str, Backend], shown: Progress, kept: Cells | None
    ) -> None:
        self._recipe, self._backends, self._shown, self._kept = recipe, backends, shown, kept
        self._source = PromptSource(recipe)
        self._cells, self._pairs = cells_of(recipe.grid), pairs_of(backends)
        self._context = min(backend.context for backend in backends.values())
        self._inside = [cell for cell in self._cells if cell.length < self._context]
        witness = HFBackend(recipe.model.path, device=recipe.learner.device)
        self._bench = Bench(backends, witness, recipe.grid)
        self._begun = time.monotonic()

    def measure(self) -> TableResult:
        """Measures and judges all."""
        read = [None if self._kept is None else self._kept.read(*cell) for cell in enumerate(self._cells)]
        with self._shown.phase("estimate"):
            predicted = self._estimate([cell for cell, known in zip(self._cells, read, strict=True) if known is None])
        beyond = len(self._cells) - len(self._inside)
        left = f", and {beyond} beyond the context of {self._context} tokens" if beyond else ""
        self._shown.total(len(self._inside), f"{len(self._inside)} cells{left}; {predicted.sentence}", unit="cells")
        self._begun, rows = time.monotonic(), list[TableRow]()
        for number, (cell, known) in enumerate(zip(self._cells, read, strict=True)):
            rows.append(known or self._row(number, cell))
            if rows[-1].state != "beyond context":
                tokens = sum(int(drawn.batch.mask.sum()) for drawn in rows[-1].drawn)
                self._shown.step(sum(row.state != "beyond context" for row in rows), {}, tokens)
        return TableResult(
            rows,
            self._pairs,
            judge_rows(rows, self._pairs, self._recipe.limits),
            {name: describe(backend) for name, backend in self._backends.items()},
            list(find_missing(self._recipe)),
            self._notes(sum(row.state == "cut by budget" for row in rows)),
            time.monotonic() - self._begun,
            predicted,
            peak_bytes(),
        )

    def _estimate(self, cells: Sequence[Cell]) -> TableEstimate:
        """Estimates the cost of some cells, those beyond the context aside."""
        folder = self._recipe.model.path
        cost = TableCost.measure(self._bench, Sizes.of(skeleton(read_config(folder), folder)))
        return cost.estimate([cell for cell in cells if cell in self._inside])

    def _row(self, number: int, cell: Cell) -> TableRow:
        begun, grid = time.monotonic(), self._recipe.grid
        if cell not in self._inside:
            return TableRow(cell, "beyond context")
        if grid.budget_s is not None and begun - self._begun >= grid.budget_s:
            return TableRow(cell, "cut by budget")
        prompts = self._source.prompts(cell.data, max(1, self._context - cell.length - ROOM))
        requests = requests_for(cell, prompts, count_sequences(cell, grid), self._recipe.seed)
        requests = put_text_before(requests, cell, prompts, rescore_limit(cell, grid))
        with self._shown.phase(cell.name):
            drawn, repeats = tuple(self._bench.draw(cell, requests)), list[Repeated]()
        if cell.length == self._cells[0].length:
            with self._shown.phase(f"{cell.name}, again"):
                repeats = [self._bench.repeat(cell, name, requests) for name in self._bench.generating]
        row = TableRow(cell, "measured", drawn, tuple(repeats), time.monotonic() - begun)
        if self._kept is not None:
            self._kept.keep(number, row)
        return row

    def _notes(self, cut: int) -> list[str]:
        notes = [f"{name} is skipped: {reason}." for name, reason in find_missing(self._recipe).items()]
        if self._source.tokenizer is None:
            path = self._recipe.model.path
            notes.append(f"{path} has no tokenizer: all prompts, real and counting, are random tokens.")
        begun = sorted({cell.length for cell in self._inside if cell.beginning})
        if begun:
            decoded = self._recipe.grid.decoded_tokens
            notes.append(
                f"of responses of {', '.join(f'{length:,}' for length in begun)} tokens the last {decoded:,} are "
                "decoded and compared; the others are the prompts' text, end to end, and read."
            )
        if cut:
            budget = self._recipe.grid.budget_s
            notes.append(f"{cut} cells were not begun within the budget of {budget:g} s; the verdict is on the others.")
        return notes


def _write(folder: Path, report: Mapping[str, object], found: TableResult) -> None:
    """Writes the numbers first, so that a report on disk is complete."""
    contents = {
        COLUMNS: save(columns_of(found.rows)),
        TABLE: markdown(found).encode(),
        REPORT: orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n",
    }
    for name, content in contents.items():
        write_whole(folder / name, [content])
