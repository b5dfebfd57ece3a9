"""`lockstep doctor table`: the grid over every pair of backends, each cell with an interval and a
verdict.

report.json, columns.safetensors   for programs, see `report.py`
table.md              for people
recipe.yaml, inputs.json, environment.json   every option, digests, versions and machine
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import orjson
from safetensors.torch import save

from lockstep.config.loading import LoadedRecipe
from lockstep.report.progress import RunProgress
from lockstep.system.whole_files import write_whole
from lockstep_doctor.backends.build import find_missing
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.commands.session import open_session
from lockstep_doctor.table.base import Backend
from lockstep_doctor.table.measure import CellMeasurer, RepeatResult, TableRow, judge_rows, pairs_of
from lockstep_doctor.table.options import DoctorRecipe
from lockstep_doctor.table.plan import (
    ROOM,
    PromptSource,
    TableCell,
    cells_of,
    count_sequences,
    put_text_before,
    requests_for,
    rescore_limit,
)
from lockstep_doctor.table.report import (
    COLUMNS,
    REPORT,
    TableResult,
    columns_of,
    describe_backend,
    render_markdown,
    tree_of,
)

TABLE = "table.md"


def measure_and_report(loaded: LoadedRecipe) -> TableResult:
    """Measures a table, prints it, and writes the report.

    Raises:
        ChangedError: The folder holds a different report.
        ValueError: The model or its prompts cannot be used.
    """
    with open_session(loaded) as (results, backends, shown):
        found = TableMeasurement(
            loaded.expect_recipe(DoctorRecipe), backends, shown
        ).measure_cells()
        with shown.phase("write"):
            report = tree_of(found, loaded, results.inputs)
            # the numbers come first, so that a report on disk is complete
            contents = {
                COLUMNS: save(columns_of(found.rows)),
                TABLE: render_markdown(found).encode(),
                REPORT: orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n",
            }
            for name, content in contents.items():
                write_whole(results.folder / name, [content])
    print(render_markdown(found), end="")
    print(f"report: {results.folder / REPORT}")
    return found


class TableMeasurement:
    """Measures the cells of a recipe, shortest first.

    Args:
        recipe: The recipe.
        backends: Backends to compare, by name; the earlier of a pair is the training side.
        shown: Progress.
    """

    def __init__(
        self, recipe: DoctorRecipe, backends: Mapping[str, Backend], shown: RunProgress
    ) -> None:
        self._recipe = recipe
        self._backends = backends
        self._shown = shown
        self._source = PromptSource(recipe)
        self._cells, self._pairs = cells_of(recipe.grid), pairs_of(backends)
        self._context = min(backend.context for backend in backends.values())
        self._inside = [cell for cell in self._cells if cell.length < self._context]
        witness = HFBackend(recipe.model.path, device=recipe.learner.device)
        self._bench = CellMeasurer(backends, witness, recipe.grid)
        self._begun = time.monotonic()
        self._rows: list[TableRow] = []

    def measure_cells(self) -> TableResult:
        """Measures and judges all cells."""
        beyond = len(self._cells) - len(self._inside)
        outside = ""
        if beyond:
            outside = f", and {beyond} beyond the context of {self._context} tokens"
        self._shown.set_total(
            len(self._inside), f"{len(self._inside)} cells{outside}", unit="cells"
        )
        self._begun = time.monotonic()
        for cell in self._cells:
            if cell in self._inside:
                row = self._measure_row(cell)
            else:
                row = TableRow(cell, "beyond context")
            self._rows.append(row)
            done = sum(row.state in ("measured", "cut by budget") for row in self._rows)
            self._shown.end_step(done, {}, sum(int(drawn.batch.mask.sum()) for drawn in row.drawn))
        return TableResult(
            self._rows,
            self._pairs,
            judge_rows(self._rows, self._pairs, self._recipe.limits),
            {name: describe_backend(backend) for name, backend in self._backends.items()},
            list(find_missing(self._recipe)),
            self._list_notes(),
            time.monotonic() - self._begun,
        )

    def _count_work(self, cell: TableCell) -> int:
        """Work of a cell: decoding steps plus scored tokens."""
        grid = self._recipe.grid
        count = count_sequences(cell, grid)
        steps = math.ceil(count / cell.batch_size) * cell.decoded_tokens
        scored = min(count, rescore_limit(cell, grid)) * cell.length
        return len(self._bench.list_drawers(cell)) * (steps + scored)

    def _measure_row(self, cell: TableCell) -> TableRow:
        begun = time.monotonic()
        grid = self._recipe.grid
        left_s = math.inf if grid.budget_s is None else grid.budget_s - (begun - self._begun)
        measured = [row for row in self._rows if row.state == "measured"]
        work = sum(self._count_work(row.cell) for row in measured)
        # 0 if no cell was measured
        expected_s = self._count_work(cell) * sum(row.seconds for row in measured) / max(work, 1)
        if left_s <= 0 or expected_s > left_s:
            return TableRow(cell, "cut by budget")
        prompts = self._source.read_prompts(cell.data, max(1, self._context - cell.length - ROOM))
        requests = requests_for(cell, prompts, count_sequences(cell, grid), self._recipe.seed)
        requests = put_text_before(requests, cell, prompts, rescore_limit(cell, grid))
        with self._shown.phase(cell.name):
            drawn = tuple(self._bench.draw_samples(cell, requests))
            repeats = list[RepeatResult]()
        if cell.length == self._cells[0].length:
            with self._shown.phase(f"{cell.name}, again"):
                for name in self._bench.generating:
                    repeats.append(self._bench.repeat_requests(cell, name, requests))
        return TableRow(cell, "measured", drawn, tuple(repeats), time.monotonic() - begun)

    def _list_notes(self) -> list[str]:
        notes: list[str] = []
        for name, reason in find_missing(self._recipe).items():
            notes.append(f"{name} is skipped: {reason}.")
        if self._source.tokenizer is None:
            path = self._recipe.model.path
            notes.append(f"{path} has no tokenizer: all prompts are random tokens.")
        begun = sorted({cell.length for cell in self._inside if cell.beginning})
        if begun:
            decoded = self._recipe.grid.decoded_tokens
            notes.append(
                f"responses of {', '.join(f'{length:,}' for length in begun)} tokens begin with "
                f"prompt text, which is prefilled; their last {decoded:,} tokens are decoded and "
                "compared."
            )
        cut = [row.cell.name for row in self._rows if row.state == "cut by budget"]
        if cut:
            budget = self._recipe.grid.budget_s
            notes.append(
                f"{len(cut)} cells were skipped, since they would exceed grid.budget_s={budget:g} "
                f"(null: no limit); the verdict covers the others: {'; '.join(cut)}."
            )
        return notes
