"""A table for people, as Markdown, and as a page with tokens as text where the model still lies where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.doctor.judging import counts_segments
from lockstep.doctor.report import TableResult
from lockstep.doctor.verdict import LEAST_CLUSTERS, CellJudgement
from lockstep.models.tokenizer import has_tokenizer, load_tokenizer
from lockstep.report.doctor_folder import DoctorFolder
from lockstep.report.doctor_page import write_doctor_page
from lockstep.report.terminal import markdown_table
from lockstep.units import readable

PAGE = "report.html"


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Writes the page of what `lockstep doctor` left in a folder: to a file, or beside it. Returns its path."""
    model, path = DoctorFolder(folder).report["model"]["path"], out or folder / PAGE
    tokenizer = load_tokenizer(model) if has_tokenizer(model) else None
    write_doctor_page(folder, None if tokenizer is None else lambda ids: str(tokenizer.decode(list(ids))), path)
    return path


def markdown(found: TableResult) -> str:
    """Renders the table, then remarks on it."""
    rows: list[list[str]] = []
    for number, row in enumerate(found.rows):
        named = [f"{row.cell.length:,}", row.cell.data, row.cell.method.name, str(row.cell.batch_size)]
        measured = row.state == "measured"
        shown = [_format(found.judged[number, pair]) if measured else row.state for pair in found.pairs]
        rows.append([*named, *shown, *("refused" for _ in found.refused)])
    pairs = (" vs ".join(pair) for pair in found.pairs)
    head = ["Length", "Data", "Method", "Batch", *pairs, *found.refused]
    judged = sum(row.state == "measured" for row in found.rows)
    rest = "" if judged == len(rows) else f" of {judged} of {len(rows)} rows; the others were not measured"
    said = [f"- {sentence}" for sentence in _remark(found)]
    return "\n".join([markdown_table(head, rows), "", *said, "", f"**{found.verdict}**{rest}", ""])


def _format(judgement: CellJudgement) -> str:
    return f"{judgement.metric:.4f} [{judgement.low:.4f}, {judgement.high:.4f}] {judgement.verdict}"


def _remark(found: TableResult) -> Iterator[str]:
    """Yields what was asked otherwise, what it took, and what is behind the numbers."""
    yield from found.notes
    spent = f"it took {found.seconds / 60:.1f} minutes and {readable(found.memory)}"
    yield f"{found.predicted.sentence}; {spent}."
    measured = [row for row in found.rows if row.state == "measured"]
    cut = [row.cell.name for row in measured if any(counts_segments(row, pair) for pair in found.pairs)]
    if cut:
        yield (
            f"judged by segments of fewer than {LEAST_CLUSTERS} long sequences, taken for independent, which says "
            f"nothing of other texts: {'; '.join(cut)}."
        )
    yield from _determinism(found)
    for (number, pair), one in found.judged.items():
        if one.verdict != "PASS":
            yield f"{found.rows[number].cell.name}, {' vs '.join(pair)}: {one.verdict}: {'; '.join(one.reasons)}."


def _determinism(found: TableResult) -> Iterator[str]:
    """Per backend how often the same request gave the same, bit for bit, and where it did not."""
    for backend in found.backends:
        own = [repeat for repeat in found.repeats if repeat.backend == backend]
        if own:
            times, bitwise = sum(repeat.times for repeat in own), sum(repeat.bitwise for repeat in own)
            yield f"{backend}, asked the same again: {bitwise} of {times} bitwise the same."
        for repeat in own:
            if repeat.bitwise < repeat.times:
                yield (
                    f"{backend}, {repeat.cell}: {repeat.bitwise} of {repeat.times} bitwise the same, "
                    f"{repeat.same_tokens} of {repeat.times} in their tokens, RMS {repeat.rms:.2g} nats."
                )
