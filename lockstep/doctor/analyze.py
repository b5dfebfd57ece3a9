"""`lockstep doctor analyze`: what a rollout dump says about agreement, without a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.doctor.causes import CAUSES
from lockstep.doctor.dump import Columns, Dump, read_dump
from lockstep.doctor.fingerprints import Reading, read
from lockstep.doctor.options import Limits
from lockstep.doctor.statistics import by_index, by_surprise, figures
from lockstep.doctor.verdict import EXIT_CODES, Judgement, judge
from lockstep.whole_files import write_whole

_SCHEMA = 1
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
class Analysis:
    """What was found in a dump.

    Attributes:
        file: The dump.
        dump: What it says.
        figures: Of all its tokens.
        judgement: Against limits that need no floor.
        readings: Fingerprints that fit.
    """

    file: Path
    dump: Dump
    figures: dict[str, float]
    judgement: Judgement
    readings: Sequence[Reading]

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return EXIT_CODES[self.judgement.verdict]


def analyze(file: Path, columns: Columns, out: Path | None) -> int:
    """Reads a dump, prints what it says as Markdown, and writes it as JSON where `out` says.

    Returns:
        The exit code.

    Raises:
        DataError: The dump cannot be read.
    """
    dump = read_dump(file, columns)
    judgement = judge(dump.compared, None, None, Limits())
    analysis = Analysis(file, dump, figures(dump.compared), judgement, read(dump))
    print(markdown(analysis))
    if out is not None:
        write_whole(out, [json.dumps(_finite(_document(analysis)), ensure_ascii=False, indent=1).encode(), b"\n"])
    return analysis.code


def markdown(analysis: Analysis) -> str:
    """The analysis to be read."""
    counted, dump = analysis.figures, analysis.dump
    return "\n".join(
        [
            f"# {analysis.file.name}: {analysis.judgement.verdict}",
            "",
            f"{counted['tokens']:,.0f} tokens of {counted['sequences']:,.0f} sequences; Δ is `{dump.columns.train}` − "
            f"`{dump.columns.infer}`, nats.",
            *dump.notes,
            "",
            *(f"- {reason}" for reason in analysis.judgement.reasons),
            "",
            "What rounding alone would make is unknown here, so these are limits for bf16 at most: two sides in fp32 "
            "may pass and yet disagree. `lockstep doctor table` measures it.",
            "",
            *_table(("figure", "", "value"), ((name, what, f"{counted[name]:.4g}") for name, what in _SHOWN)),
            "",
            *_strata(dump),
            "## What it looks like",
            "",
            *(_readings(analysis)),
        ]
    )


def _strata(dump: Dump) -> Iterable[str]:
    for title, parts in (
        ("place in the response", by_index(dump.compared)),
        ("surprise, −log p of the inference side", by_surprise(dump.compared)),
    ):
        found = ((name, figures(part)) for name, part in parts.items())
        rows = (
            (
                name,
                f"{one['tokens']:,.0f}",
                *(f"{one[key]:.4g}" for key in ("token_mult_prob_error", "median_abs", "p99")),
            )
            for name, one in found
        )
        yield from _table((title, "tokens", "mean e^abs(Δ)", "median abs(Δ)", "99 % within"), rows)
        yield ""


def _readings(analysis: Analysis) -> Iterable[str]:
    if not analysis.readings:
        disagrees = analysis.judgement.verdict == "FAIL"
        yield "Unexplained: no fingerprint clearly fits." if disagrees else "Nothing in particular."
    for reading in analysis.readings:
        side = {"train": " (training side)", "infer": " (inference side)", None: ""}[reading.side]
        yield f"**{reading.what}**{side}: {reading.evidence}."
        yield ""
        yield from (f"- consistent with `{name}`: {CAUSES[name].what}; {CAUSES[name].cure}" for name in reading.causes)
        yield from () if reading.causes else ("- consistent with asynchronous rollouts, which break nothing",)
        yield ""
    if analysis.readings:
        yield "A fingerprint proves nothing: `lockstep doctor diagnose` tries each cause on the model."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    yield from ("| " + " | ".join(row) + " |" for row in rows)


def _document(analysis: Analysis) -> dict[str, Any]:
    compared, judgement = analysis.dump.compared, analysis.judgement
    return {
        "schema": _SCHEMA,
        "file": str(analysis.file),
        "digest": analysis.dump.digest,
        "columns": asdict(analysis.dump.columns),
        "notes": analysis.dump.notes,
        "verdict": judgement.verdict,
        "reasons": judgement.reasons,
        "clauses": {name: asdict(clause) for name, clause in judgement.clauses.items()},
        "figures": analysis.figures,
        "by_index": {name: figures(part) for name, part in by_index(compared).items()},
        "by_surprise": {name: figures(part) for name, part in by_surprise(compared).items()},
        "readings": [asdict(reading) for reading in analysis.readings],
    }


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
