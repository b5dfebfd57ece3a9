"""`lockstep doctor analyze`: what a rollout dump says about agreement, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from lockstep.data.rows import DataError
from lockstep.doctor.options import DoctorLimits
from lockstep.doctor.verdict import CellJudgement, judge
from lockstep.whole_files import write_whole
from lockstep_doctor.analyze import describe_figures, describe_findings
from lockstep_doctor.column import Finding, examine_columns
from lockstep_doctor.dumps import Dump, DumpError, FieldNames, read_dump
from lockstep_doctor.statistics import figures

_SCHEMA = 3


@dataclass(frozen=True)
class DumpAnalysis:
    """Verdict on a dump, by limits for bf16, and what its differences look like."""

    judgement: CellJudgement
    figures: Mapping[str, float]
    findings: Sequence[Finding]


def analyze_dump(file: Path, names: FieldNames, out: Path | None = None) -> DumpAnalysis:
    """Reads a dump, prints what it says as Markdown, and writes it as JSON where `out` says.

    Raises:
        DataError: The dump cannot be read, or has one side alone.
    """
    try:
        dump = read_dump(file, names)
    except DumpError as error:
        raise DataError(str(error)) from error
    if dump.train is None or dump.infer is None:
        missing = "train" if dump.train is None else "infer"
        raise DataError(
            f"{file}: has {dump.train or dump.infer} alone, and analyze compares two sides; name the other one by "
            f"FieldNames({missing}=…) or --{missing}-column, or say lockstep doctor locate {file} --model FOLDER"
        )
    compared = dump.columns.compare()
    judgement = judge({"infer": (compared, None)}, DoctorLimits())
    analysis = DumpAnalysis(judgement, figures(compared), examine_columns(dump.columns))
    print("\n".join(_lines(file, dump, analysis)))
    if out is not None:
        write_whole(out, [orjson.dumps(_document(file, dump, analysis), option=orjson.OPT_INDENT_2), b"\n"])
    return analysis


def _lines(file: Path, dump: Dump, analysis: DumpAnalysis) -> list[str]:
    verdict, numbers = analysis.judgement.verdict, analysis.figures
    none = "No rule and no formula fits." if verdict == "FAIL" else "Nothing in particular."
    return [
        f"# {file.name}: {verdict}",
        "",
        f"{numbers['tokens']:,.0f} tokens of {numbers['sequences']:,.0f} sequences; Δ is `{dump.train}` − "
        f"`{dump.infer}`, nats.",
        *dump.notes,
        "",
        *(f"- {reason}" for reason in analysis.judgement.reasons),
        "",
        "What rounding alone would make is unknown here, so these are limits for bf16 at most: two sides in fp32 "
        "may pass and yet disagree. `lockstep doctor table` measures it.",
        "",
        describe_figures(numbers),
        "",
        "## What it looks like",
        "",
        *(describe_findings(analysis.findings) if analysis.findings else [none]),
    ]


def _document(file: Path, dump: Dump, analysis: DumpAnalysis) -> dict[str, Any]:
    judgement = analysis.judgement
    return {
        "schema": _SCHEMA,
        "file": str(file),
        "columns": {"train": dump.train, "infer": dump.infer},
        "notes": dump.notes,
        "verdict": judgement.verdict,
        "reasons": judgement.reasons,
        "clauses": {name: asdict(clause) for name, clause in judgement.clauses.items()},
        "figures": analysis.figures,
        "findings": [
            asdict(one) | {"where": one.where and str(one.where), "consistent": one.consistent}
            for one in analysis.findings
        ],
    }
