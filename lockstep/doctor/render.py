"""A table for people, as Markdown, and for machines that run tests, as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from lockstep.doctor.judging import PairJudgement, TableRow, counts_segments, whole
from lockstep.doctor.report import TableResult
from lockstep.doctor.verdict import LEAST_CLUSTERS
from lockstep.plan.sizes import readable


def markdown(found: TableResult) -> str:
    """Renders the table, then remarks on it."""
    head = [
        "Length",
        "Data",
        "Method",
        "Batch",
        *(f"{train} vs {infer}" for train, infer in found.pairs),
        *found.refused,
    ]
    lines = [_line(head), _line(["---:", "---", "---", "---:", *("---" for _ in head[4:])])]
    for number, row in enumerate(found.rows):
        cell = row.cell
        shown = [_format_pair(found.of(number, pair)) for pair in found.pairs] if row.state == "measured" else []
        named = [f"{cell.length:,}", cell.data, cell.method.name, str(cell.batch_size)]
        shown = shown or [row.state] * len(found.pairs)
        lines.append(_line([*named, *shown, *("refused" for _ in found.refused)]))
    spent = f"it took {found.seconds / 60:.1f} minutes and {readable(found.memory)}"
    said = [
        *found.notes,
        f"{found.predicted.sentence}; {spent}.",
        *_segments(found),
        *_strangers(found),
        *_determinism(found),
        *_reasons(found),
    ]
    return "\n".join(
        [*lines, "", *(f"- {sentence}" for sentence in said), "", f"**{whole(found.judged)}**{_of_how_many(found)}", ""]
    )


def _of_how_many(found: TableResult) -> str:
    """Returns the number of judged rows as text, unless all are."""
    measured = sum(row.state == "measured" for row in found.rows)
    return (
        "" if measured == len(found.rows) else f" of {measured} of {len(found.rows)} rows; the others were not measured"
    )


def junit(found: TableResult) -> str:
    """One test case for each cell and pair: inconclusive is an error, what was not measured is skipped."""
    suite = ElementTree.Element("testsuite", name="lockstep doctor table")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for pair in found.pairs:
        for number, row in enumerate(found.rows):
            case = ElementTree.SubElement(
                suite, "testcase", classname=" vs ".join(pair), name=row.cell.name, time=f"{row.seconds:.3f}"
            )
            tag, message = _outcome(found.of(number, pair) if row.state == "measured" else None, row)
            counts["tests"] += 1
            if tag is not None:
                ElementTree.SubElement(case, tag, message=message)
                counts[{"failure": "failures", "error": "errors", "skipped": "skipped"}[tag]] += 1
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _line(parts: list[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _format_pair(one: PairJudgement) -> str:
    judgement = one.judgement
    return f"{judgement.metric:.4f} [{judgement.low:.4f}, {judgement.high:.4f}] {judgement.verdict}"


def _segments(found: TableResult) -> Iterator[str]:
    cut = [
        row.cell.name
        for row in found.rows
        if row.state == "measured" and any(counts_segments(row, pair) for pair in found.pairs)
    ]
    if cut:
        yield (
            f"judged by segments of fewer than {LEAST_CLUSTERS} long sequences, taken for independent, which says "
            f"nothing of other texts: {'; '.join(cut)}."
        )


def _strangers(found: TableResult) -> Iterator[str]:
    for row in found.rows:
        for drawn in row.drawn:
            for name in sorted(drawn.strangers):
                yield f"{row.cell.name}: {name} scored other tokens than those that {drawn.drawer} drew."


def _determinism(found: TableResult) -> Iterator[str]:
    """Per backend how often the same request gave the same, bit for bit, and where it did not."""
    for backend in found.backends:
        own = [repeat for repeat in found.repeats if repeat.backend == backend]
        if not own:
            continue
        times, bitwise = sum(repeat.times for repeat in own), sum(repeat.bitwise for repeat in own)
        yield f"{backend}, asked the same again: {bitwise} of {times} bitwise the same."
        for repeat in own:
            if repeat.bitwise < repeat.times:
                yield (
                    f"{backend}, {repeat.cell}: {repeat.bitwise} of {repeat.times} bitwise the same, "
                    f"{repeat.same_tokens} of {repeat.times} in their tokens, RMS {repeat.rms:.2g} nats."
                )


def _reasons(found: TableResult) -> Iterator[str]:
    for one in found.judged:
        if one.judgement.verdict != "PASS":
            name = found.rows[one.row].cell.name
            yield f"{name}, {' vs '.join(one.pair)}: {one.judgement.verdict}: {'; '.join(one.judgement.reasons)}."


def _outcome(one: PairJudgement | None, row: TableRow) -> tuple[str | None, str]:
    if one is None:
        return "skipped", row.state
    tag = {"PASS": None, "FAIL": "failure", "INCONCLUSIVE": "error"}[one.judgement.verdict]
    return tag, "; ".join(one.judgement.reasons)
