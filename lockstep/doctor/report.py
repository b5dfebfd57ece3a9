"""Output of `lockstep doctor table`: report.json for programs, and the numbers beside it.

`report.json`, schema `lockstep.doctor.table/1` (figures that are not finite are null):

    schema          its name and number
    verdict         PASS, FAIL or INCONCLUSIVE: the worst of all cells and pairs
    exit_code       of the command
    seconds         that it took
    memory          bytes that this process held at most
    predicted       {seconds, most, memory}: what was said of both beforehand, with as few sequences as may be and with
                    as many
    model           {path, digest: of its weights, files: {name: digest}}
    environment     {name: version or description} of machine and libraries
    recipe          every option
    refused         backends that were asked for, and that the machine cannot have
    notes           sentences about what was asked otherwise than one would think
    backends        {name: {settings, config, capabilities, context}}
    pairs           [[training side, inference side], …]
    cells           [{name, length, data, method, batch_size, state, sequences, seconds, pairs: […]}, …]
      method        {name, temperature, top_k, top_p}
      state         measured, beyond context, cut by budget; sequences and pairs are there only for what was measured
      pairs         [{train, infer, verdict, metric, low, high, reasons, clauses, drawn: {infer: …, train: …}}, …]
        metric      mean of e^|Δ|, |Δ| counting at most 3, over what the inference side drew; low and high bound it
        clauses     {side.name: {name, side, verdict, value, low, high, limit, what, …}} (`doctor.verdict.Clause`)
        drawn       by the side that drew: {drawer, kind, columns: {tokens, lengths, mask, cluster, train, infer, floor:
                    [two]}, floor_rms, figures}; columns are names in columns.safetensors, kind is shaped (scored under
                    the distribution that was drawn from) or plain (at temperature 1, among all tokens); figures are of
                    `doctor.statistics.figures`, which takes the side that drew for the inference side
    repeats         [{cell, backend, times, same_tokens, bitwise, rms}, …] (`doctor.measure.Repeated`)

`columns.safetensors`, for cell c (its number in `cells`) and each drawer d:

    c.d.tokens      ids of prompts and responses, end to end, int32 [N]
    c.d.lengths     tokens of each sequence, int64 [B]; their sum is N
    c.d.mask        which tokens were drawn, bool [N]; there are M
    c.d.cluster     sequences with the same number answer the same prompt, int64 [B]
    c.d.decoded     log-probabilities that the drawer's decoding gave, nats, fp32 [M]
    c.d.shaped.b    those of backend b by prefill, under the distribution that was drawn from, fp32 [M]
    c.d.plain.b     the same at temperature 1 and among all tokens, where some backend knows nothing else
    c.d.shaped.rounding.t, c.d.plain.rounding.t
                    |Δ| that rounding makes in type t, fp32 [M]; a pair's floor is the root of the sum of the squares
                    of its two types'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.config.loading import Loaded
from lockstep.doctor.base import Backend
from lockstep.doctor.estimate import TableEstimate
from lockstep.doctor.judging import Pair, PairJudgement, TableRow, samples_for
from lockstep.doctor.measure import Drawn, Repeated
from lockstep.doctor.options import DoctorRecipe
from lockstep.doctor.verdict import EXIT_CODES, Verdict, worst_of
from lockstep.report.doctor_folder import SCHEMA
from lockstep.run.doctor_reports import weights_digest
from lockstep.run.identity import Identity
from lockstep.run.machine import describe_machine
from lockstep_doctor.statistics import figures


@dataclass(frozen=True)
class TableResult:
    """All that a table found.

    Attributes:
        repeats: Of the shortest cells.
        refused: Backends that were asked for and that the machine cannot have.
        notes: What was asked otherwise than one would think.
        memory: Bytes that this process held at most.
    """

    rows: Sequence[TableRow]
    pairs: Sequence[Pair]
    judged: Sequence[PairJudgement]
    repeats: Sequence[Repeated]
    backends: Mapping[str, Mapping[str, Any]]
    refused: Sequence[str]
    notes: Sequence[str]
    seconds: float
    predicted: TableEstimate
    memory: int

    def of(self, row: int, pair: Pair) -> PairJudgement:
        """The verdict on a pair in a measured cell."""
        return next(one for one in self.judged if (one.row, one.pair) == (row, pair))

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst_of(one.judgement.verdict for one in self.judged)


def describe(backend: Backend) -> dict[str, Any]:
    """Describes a backend: settings, config, capabilities."""
    return {
        "settings": dict(backend.settings()),
        "config": dict(backend.config()),
        "capabilities": sorted(backend.capabilities),
        "context": backend.context,
    }


def tree_of(found: TableResult, loaded: Loaded, inputs: Identity) -> dict[str, Any]:
    """`report.json`."""
    folder = Path(loaded.expect(DoctorRecipe).model.path)
    files = {name.removeprefix("model."): its for name, its in inputs.items() if name.startswith("model.")}
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "exit_code": EXIT_CODES[found.verdict],
        "seconds": found.seconds,
        "predicted": asdict(found.predicted),
        "memory": found.memory,
        "model": {"path": str(folder), "digest": weights_digest(folder), "files": files},
        "environment": describe_machine() | gpu,
        "recipe": loaded.dump(),
        "refused": list(found.refused),
        "notes": list(found.notes),
        "backends": found.backends,
        "pairs": found.pairs,
        "cells": [_cell(found, number, row) for number, row in enumerate(found.rows)],
        "repeats": [asdict(repeat) for repeat in found.repeats],
    }


def columns_of(rows: Sequence[TableRow]) -> dict[str, Tensor]:
    """`columns.safetensors`."""
    tensors: dict[str, Tensor] = {}
    for number, row in enumerate(rows):
        for drawn in row.drawn:
            batch = drawn.batch
            own = {"tokens": batch.tokens.int(), "lengths": batch.lengths, "mask": batch.mask}
            own |= {"cluster": drawn.cluster} | drawn.tensors()
            tensors |= {f"{number}.{drawn.drawer}.{name}": tensor.contiguous() for name, tensor in own.items()}
    return tensors


def _cell(found: TableResult, number: int, row: TableRow) -> dict[str, Any]:
    method = {"name": row.cell.method.name, **row.cell.method.model_dump()}
    said = {"name": row.cell.name, **asdict(row.cell), "method": method, "state": row.state}
    if row.state != "measured":
        return said
    pairs = [_pair(found.of(number, pair), row) for pair in found.pairs]
    return said | {"sequences": len(row.drawn[0].batch), "seconds": row.seconds, "pairs": pairs}


def _pair(one: PairJudgement, row: TableRow) -> dict[str, Any]:
    (train, infer), judgement = one.pair, one.judgement
    samples = {side: _samples(which, one) for side, which in samples_for(row, one.pair).items()}
    reasons = list(judgement.reasons) if judgement.verdict != "PASS" else []
    return {"train": train, "infer": infer, **asdict(judgement), "reasons": reasons, "drawn": samples}


def _samples(drawn: Drawn, one: PairJudgement) -> dict[str, Any]:
    kind, prefix = drawn.kind(*one.pair), f"{one.row}.{drawn.drawer}"
    train, infer = drawn.columns(*one.pair)
    compared = drawn.compare(*one.pair)
    floor = [f"{kind}.rounding.{drawn.dtypes[name]}" for name in one.pair]
    columns = {name: f"{prefix}.{name}" for name in ("tokens", "lengths", "mask", "cluster")}
    columns |= {"train": f"{prefix}.{train}", "infer": f"{prefix}.{infer}"}
    return {
        "drawer": drawn.drawer,
        "kind": kind,
        "columns": {**columns, "floor": [f"{prefix}.{name}" for name in floor]},
        "floor_rms": float(drawn.floor(*one.pair).double().square().mean().sqrt()),
        "figures": figures(compared if drawn.drawer == one.pair[1] else compared.swap()),
    }
