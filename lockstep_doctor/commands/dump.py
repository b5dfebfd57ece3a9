"""Dump commands: `lockstep doctor analyze DUMP`, without a model, and `lockstep doctor locate DUMP
--model FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.config.hub import fetch_model
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.data.rows import DataError
from lockstep.report.terminal import markdown_table
from lockstep_doctor.columns import SIDES, ColumnFinding, examine_columns
from lockstep_doctor.dumps.judge import FEW_TOKENS, describe_dump, locate_dump
from lockstep_doctor.dumps.names import DumpError, FieldNames
from lockstep_doctor.dumps.read import Dump, read_dump
from lockstep_doctor.statistics import compute_figures
from lockstep_doctor.table.options import DoctorLimits
from lockstep_doctor.table.verdict import CellJudgment, judge_cell

_SHOWN = {
    "token_mult_prob_error": "mean e^abs(Δ)",
    "capped_mult_prob_error": "the same, with abs(Δ) capped at 3",
    "k1": "KL(inference ‖ training), k1: mean −Δ",
    "k3": "KL(inference ‖ training), k3",
    "mean_ratio": "mean e^Δ: 1 in expectation if inference drew the tokens",
    "rms": "root mean square of Δ",
    "median_abs": "median abs(Δ)",
    "p99": "99th percentile of abs(Δ)",
    "max_abs": "largest abs(Δ)",
    "outlier_rate_1": "share of tokens with abs(Δ) above 1 nat",
    "sequence_ess": "effective share of sequences under importance weighting",
    "support_violations_train": "tokens without probability on the training side",
    "support_violations_infer": "tokens without probability on the inference side",
}


@dataclass(frozen=True)
class DumpAnalysis:
    """Verdict on a dump by the limits for bf16, and patterns in its differences."""

    judgment: CellJudgment
    figures: Mapping[str, float]
    findings: Sequence[ColumnFinding]


def analyze_dump(file: Path, names: FieldNames) -> DumpAnalysis:
    """Analyzes a dump, and prints a report as Markdown.

    Raises:
        DataError: The dump cannot be read, or has only one side.
    """
    try:
        dump = read_dump(file, names)
    except DumpError as error:
        raise DataError(str(error)) from error
    if dump.train is None or dump.infer is None:
        missing = "train" if dump.train is None else "infer"
        raise DataError(
            f"{file}: analyze needs two sides, but the dump has only {dump.train or dump.infer}; "
            f"name the other column with --columns {missing}=…, or run lockstep doctor locate "
            f"{file} --model FOLDER"
        )
    compared = dump.columns.compare_sides()
    judgment = judge_cell({"infer": (compared, None)}, DoctorLimits())
    analysis = DumpAnalysis(judgment, compute_figures(compared), examine_columns(dump.columns))
    print("\n".join(_describe_analysis(file, dump, analysis)))
    return analysis


def _describe_analysis(file: Path, dump: Dump, analysis: DumpAnalysis) -> Iterator[str]:
    numbers = analysis.figures
    yield f"# {file.name}: {analysis.judgment.verdict}"
    yield ""
    yield (
        f"{numbers['tokens']:,.0f} tokens of {numbers['sequences']:,.0f} sequences; Δ is "
        f"`{dump.train}` − `{dump.infer}`, nats."
    )
    yield ""
    yield from (f"- {reason}" for reason in analysis.judgment.reasons)
    yield ""
    yield "The limits are for bf16; two fp32 sides may pass and still disagree."
    yield ""
    rows = ((name, what, f"{numbers[name]:.4g}") for name, what in _SHOWN.items())
    yield markdown_table(("figure", "", "value"), rows)
    for one in analysis.findings:
        side = ""
        if one.side is not None:
            side = f" ({SIDES[one.side]} side)"
        yield f"- **{one.kind}**{side}: {one.what}"
        yield f"  {one.tokens:,} tokens in {one.where}; {one.share:.0%} of all squared Δ"
    yield "These patterns only hint at a cause; `lockstep doctor locate` finds it in the models."


def locate_file(dump: str, model: str, names: FieldNames) -> int:
    """Prints which side of a dump deviates from the model, and at which stage; returns the exit
    code.

    Args:
        dump: File or folder of the dump.
        model: Folder of the model, or of the finished run that trained it.
        names: Names of the dump's columns.

    Raises:
        InputError: The dump or the model cannot be read.
    """
    try:
        found = locate_dump(
            Path(dump), fetch_model(model), names, heard=lambda phase: print(phase, file=sys.stderr)
        )
    except DumpError as error:
        raise InputError(str(error)) from error
    print("\n".join(describe_dump(found)))
    if found.wrong_sides:
        return exit_codes.BROKEN
    if found.tokens < FEW_TOKENS:
        return exit_codes.INCONCLUSIVE
    return exit_codes.OK
