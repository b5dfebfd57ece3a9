"""Output of `lockstep doctor table`: `report.json` and `columns.safetensors` for programs, Markdown
for people.

`report.json` has the schema `lockstep_doctor.table/2`; figures that are not finite are null:

    verdict, exit_code    PASS, FAIL or INCONCLUSIVE: the worst of all cells and pairs
    seconds, notes        time taken; deviations from the requested measurement
    model                 {path, digest, files}: digests of the weights and of each file
    environment, recipe   versions, machine and libraries; every option
    refused               requested backends that the machine cannot run
    backends              by name: {settings, capabilities, context}
    pairs                 [[training side, inference side], …]
    cells                 [{name, length, data, method, batch_size, beginning, state, sequences,
                          seconds, pairs}, …]
    repeats               [{cell, backend, times, same_tokens, bitwise, rms}, …]: repeated requests

In a cell, `state` is measured, beyond context or cut by budget; only measured cells have
`sequences` and `pairs`; `method` is {name, temperature, top_k, top_p}. Each of its `pairs` has

    train, infer          names of the two backends
    verdict, reasons      of this pair in this cell, and a sentence for each clause that made it so
    metric, low, high     mean of e^min(|Δ|, 3) over sampled tokens, and its bounds
    clauses               by side and name: {name, side, verdict, value, low, high, limit, what}
    drawn                 by the side that drew: {drawer, kind, columns, floor_rms, figures}

`kind` is shaped (scored under the sampling distribution) or plain (at temperature 1, over all
tokens); `columns` names tensors of `columns.safetensors`; in `figures` the side that drew counts as
the inference side.

`columns.safetensors` has for cell c (its number in `cells`) and each drawer d, with N tokens in B
sequences, of which M were drawn:

    c.d.tokens            ids of prompts and responses, end to end, int32 [N]
    c.d.lengths           tokens of each sequence, int64 [B]
    c.d.mask              which tokens were drawn, bool [N]
    c.d.cluster           sequences with the same number answer the same prompt, int64 [B]
    c.d.decoded           log-probabilities from the drawer's decoding, nats, fp32 [M]
    c.d.shaped.b          those of backend b by prefill, under the sampling distribution, fp32 [M]
    c.d.plain.b           the same at temperature 1 and among all tokens, if it has only these
    c.d.shaped.rounding.t, c.d.plain.rounding.t
                          |Δ| that rounding makes in type t, fp32 [M]; a pair's floor is the root of
                          the sum of the
                          squares of its two types'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.config.loading import LoadedRecipe
from lockstep.models.digests import digest_files
from lockstep.report.terminal import markdown_table
from lockstep.run.folder.identity import RunIdentity
from lockstep.run.folder.machine import describe_machine
from lockstep_doctor.statistics import compute_figures
from lockstep_doctor.table.base import Backend
from lockstep_doctor.table.measure import (
    BackendPair,
    DrawnSamples,
    RepeatResult,
    TableRow,
    counts_segments,
    samples_for,
)
from lockstep_doctor.table.options import DoctorRecipe
from lockstep_doctor.table.verdict import (
    EXIT_CODES,
    LEAST_CLUSTERS,
    CellJudgment,
    Verdict,
    worst_of,
)

REPORT = "report.json"
COLUMNS = "columns.safetensors"
SCHEMA = "lockstep_doctor.table/2"


@dataclass(frozen=True)
class TableResult:
    """Results of a table.

    Attributes:
        refused: Requested backends that the machine cannot run.
        notes: Deviations from the requested measurement.
    """

    rows: Sequence[TableRow]
    pairs: Sequence[BackendPair]
    judged: Mapping[tuple[int, BackendPair], CellJudgment]
    backends: Mapping[str, Mapping[str, Any]]
    refused: Sequence[str]
    notes: Sequence[str]
    seconds: float

    @property
    def all_repeats(self) -> list[RepeatResult]:
        """Repeats of all cells."""
        return list(chain.from_iterable(row.repeats for row in self.rows))

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all cells."""
        return worst_of(one.verdict for one in self.judged.values())


def describe_backend(backend: Backend) -> dict[str, Any]:
    """Describes a backend: settings, capabilities, context."""
    return {
        "settings": dict(backend.list_settings()),
        "capabilities": sorted(backend.capabilities),
        "context": backend.context,
    }


def tree_of(found: TableResult, loaded: LoadedRecipe, inputs: RunIdentity) -> dict[str, Any]:
    """`report.json`."""
    folder = Path(loaded.expect_recipe(DoctorRecipe).model.path)
    files = dict[str, Any]()
    for name, digest in inputs.items():
        if name.startswith("model."):
            files[name.removeprefix("model.")] = digest
    environment = dict(describe_machine())
    if torch.cuda.is_available():
        environment["gpu"] = torch.cuda.get_device_name()
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "exit_code": EXIT_CODES[found.verdict],
        "seconds": found.seconds,
        "model": {
            "path": str(folder),
            "digest": digest_files(sorted(folder.glob("*.safetensors"))),
            "files": files,
        },
        "environment": environment,
        "recipe": loaded.dump_options(),
        "refused": list(found.refused),
        "notes": list(found.notes),
        "backends": found.backends,
        "pairs": found.pairs,
        "cells": [_describe_cell(found, number, row) for number, row in enumerate(found.rows)],
        "repeats": list(map(asdict, found.all_repeats)),
    }


def columns_of(rows: Sequence[TableRow]) -> dict[str, Tensor]:
    """`columns.safetensors`."""
    tensors: dict[str, Tensor] = {}
    for number, row in enumerate(rows):
        for drawn in row.drawn:
            batch = drawn.batch
            own = {"tokens": batch.tokens.int(), "lengths": batch.lengths, "mask": batch.mask}
            own |= {"cluster": drawn.cluster, **drawn.tensors}
            for name, tensor in own.items():
                tensors[f"{number}.{drawn.drawer}.{name}"] = tensor.contiguous()
    return tensors


def _describe_cell(found: TableResult, number: int, row: TableRow) -> dict[str, Any]:
    method = {"name": row.cell.method.name, **row.cell.method.model_dump()}
    tree = {"name": row.cell.name, **asdict(row.cell), "method": method, "state": row.state}
    if row.state != "measured":
        return tree
    pairs = list[dict[str, Any]]()
    for pair in found.pairs:
        judgment = found.judged[number, pair]
        reasons = list[str]()
        if judgment.verdict != "PASS":
            reasons += judgment.reasons
        drawn = dict[str, Any]()
        for side, samples in samples_for(row, pair).items():
            drawn[side] = _describe_samples(samples, number, pair)
        sides = {"train": pair[0], "infer": pair[1]}
        pairs.append({**sides, **asdict(judgment), "reasons": reasons, "drawn": drawn})
    return tree | {"sequences": len(row.drawn[0].batch), "seconds": row.seconds, "pairs": pairs}


def _describe_samples(drawn: DrawnSamples, number: int, pair: BackendPair) -> dict[str, Any]:
    kind = drawn.comparison_kind(*pair)
    prefix = f"{number}.{drawn.drawer}"
    compared = drawn.compare_pair(*pair)
    columns = {name: f"{prefix}.{name}" for name in ("tokens", "lengths", "mask", "cluster")}
    train, infer = drawn.column_names(*pair)
    columns |= {"train": f"{prefix}.{train}", "infer": f"{prefix}.{infer}"}
    return {
        "drawer": drawn.drawer,
        "kind": kind,
        "columns": {
            **columns,
            "floor": [f"{prefix}.{kind}.rounding.{drawn.dtypes[name]}" for name in pair],
        },
        "floor_rms": float(drawn.rounding_floor(*pair).double().square().mean().sqrt()),
        "figures": compute_figures(compared if drawn.drawer == pair[1] else compared.swap_sides()),
    }


def render_markdown(found: TableResult) -> str:
    """Renders the table and remarks as Markdown."""
    rows: list[list[str]] = []
    for number, row in enumerate(found.rows):
        named = [
            f"{row.cell.length:,}",
            row.cell.data,
            row.cell.method.name,
            str(row.cell.batch_size),
        ]
        judged = [found.judged.get((number, pair)) for pair in found.pairs]
        shown = [row.state if one is None else _format_cell(one) for one in judged]
        rows.append([*named, *shown, *("refused" for _ in found.refused)])
    pairs = (" vs ".join(pair) for pair in found.pairs)
    head = ["Length", "Data", "Method", "Batch", *pairs, *found.refused]
    measured = sum(row.state == "measured" for row in found.rows)
    rest = ""
    if measured < len(rows):
        rest = f" of {measured} of {len(rows)} rows; the others were not measured"
    remarks = [f"- {sentence}" for sentence in _list_remarks(found)]
    return "\n".join(
        [markdown_table(head, rows), "", *remarks, "", f"**{found.verdict}**{rest}", ""]
    )


def _format_cell(judged: CellJudgment) -> str:
    """Renders a cell: mean e^|Δ| over the samples of the inference side and of the training
    side.
    """
    sides = list[str]()
    for side in ("infer", "train"):
        clause = judged.clauses.get(f"{side}.mult_prob_error")
        if clause is not None:
            sides.append(_show_ratio(clause.value))
    return (
        f"{' / '.join(sides)} [{_show_ratio(judged.low)}, {_show_ratio(judged.high)}] "
        f"{judged.verdict}"
    )


def _show_ratio(value: float) -> str:
    """Renders a mean e^|Δ|; close to 1, as `1 +` two significant digits."""
    above = value - 1
    if 0 < above < 1e-3:
        return f"1 + {above:.1e}"
    return f"{value:.4f}"


def _list_remarks(found: TableResult) -> Iterator[str]:
    """Yields remarks below the table."""
    yield (
        "mean e^|Δ| over tokens sampled by the inference side / by the training side, if both "
        "sampled."
    )
    yield from found.notes
    cut = list[str]()
    for row in found.rows:
        if row.state == "measured" and any(counts_segments(row, pair) for pair in found.pairs):
            cut.append(row.cell.name)
    if cut:
        yield (
            f"bounds from segments of fewer than {LEAST_CLUSTERS} long sequences, taken as "
            f"independent; they hold for these texts only: {'; '.join(cut)}."
        )
    # how often repeated requests were bitwise equal
    for backend in found.backends:
        own = [repeat for repeat in found.all_repeats if repeat.backend == backend]
        if own:
            times = sum(repeat.times for repeat in own)
            bitwise = sum(repeat.bitwise for repeat in own)
            yield f"{backend}, repeated requests: {bitwise} of {times} bitwise equal."
        for repeat in own:
            if repeat.bitwise < repeat.times:
                yield (
                    f"{backend}, {repeat.cell}: {repeat.bitwise} of {repeat.times} bitwise equal, "
                    f"{repeat.same_tokens} of {repeat.times} with equal tokens, RMS "
                    f"{repeat.rms:.2g} nats."
                )
    for (number, pair), one in found.judged.items():
        if one.verdict != "PASS":
            yield (
                f"{found.rows[number].cell.name}, {' vs '.join(pair)}: {one.verdict}: "
                f"{'; '.join(one.reasons)}."
            )
