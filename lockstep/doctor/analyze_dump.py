"""`lockstep doctor analyze`: what a rollout dump says about agreement, without a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from lockstep.data.rows import DataError
from lockstep.doctor.options import DoctorLimits
from lockstep.doctor.verdict import CellJudgement, judge
from lockstep.report.terminal import markdown_table
from lockstep.whole_files import write_whole
from lockstep_doctor.column import Finding, examine_columns
from lockstep_doctor.column.columns import SIDES
from lockstep_doctor.dumps import Dump, DumpError, FieldNames, read_dump
from lockstep_doctor.statistics import figures

_SCHEMA = 3
_SHOWN = (
    ("token_mult_prob_error", "mean e^abs(Δ)"),
    ("capped_mult_prob_error", "the same, abs(Δ) counting at most 3"),
    ("k1", "KL(inference ‖ training), k1: mean −Δ"),
    ("k1_se", "standard error of k1, over sequences"),
    ("k3", "KL(inference ‖ training), k3"),
    ("mean_ratio", "mean e^Δ: 1 if both are distributions, and inference's was drawn from"),
    ("mean_ratio_se", "its standard error, over sequences"),
    ("rms", "root mean square of Δ"),
    ("trimmed_rms", "the same without the 5 % of tokens that are farthest off"),
    ("median_abs", "median abs(Δ)"),
    ("p99", "99 % of tokens are within"),
    ("p999", "99.9 % of tokens are within"),
    ("max_abs", "largest abs(Δ)"),
    ("outlier_rate_1", "share of tokens off by more than 1 nat"),
    ("sequence_ess", "effective share of sequences, by importance weights"),
    ("slope", "slope of Δ on log-probability"),
    ("correlation", "correlation of the two sides"),
    ("support_violations_train", "tokens with no probability on the training side"),
    ("support_violations_infer", "tokens with no probability on the inference side"),
)


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
        markdown_table(("figure", "", "value"), ((name, what, f"{numbers[name]:.4g}") for name, what in _SHOWN)),
        "",
        "## What it looks like",
        "",
        *(_describe_findings(analysis.findings) if analysis.findings else [none]),
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


def _describe_findings(findings: Iterable[Finding]) -> Iterator[str]:
    """Yields what was found, line by line, and what usually leaves such marks; none of it is proven to be the cause."""
    for one in findings:
        side = "" if one.side is None else f" ({SIDES[one.side]} side)"
        yield f"**{one.kind}**{side}: {one.what}."
        yield ""
        yield f"- {one.tokens_in_words}; {one.share:.0%} of the squares of Δ"
        yield from (f"- consistent with {cause}" for cause in one.consistent)
        yield ""
    yield "Marks prove nothing: `lockstep doctor locate` looks for the place in the models themselves."
