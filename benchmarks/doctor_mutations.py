"""Score of `lockstep_doctor.locate` on faults that nobody wrote: random edits of code that models
run, and of loaders.

    python -m benchmarks.doctor_mutations [--count 25] [--seed TEXT] [--out FOLDER]

Edited are five families' code in `transformers`, the masks and angles that families share there,
Lockstep's attention, what packs a learner's batch, the torch sampler's passes, what loads a folder,
and what carries weights to a sampler. Drawn are edits of lines that run. Kept are those after which
the program runs and is farther from the original than three times what rounding makes. The truth is
the line that was edited. Each commit draws others, unless `--seed` says which. With `--out` the
same command resumes where it was stopped; `--count` of a later one may be larger. An edit of which
the process died is one that crashed.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from transformers.utils import logging

from benchmarks.mutate_code import draw, edits_of, seed_of_commit
from benchmarks.mutated_programs import Program, find_programs
from benchmarks.mutation_score import Judge, Score

_FIELDS = ("segment", "in_function", "in_line", "reproduces")
_COLUMNS = (
    "Part", "Kept of drawn", "Equivalent", "Crashed", "Segment", "Function in 3", "Line in 3", "Script holds",
    "Share removed, median", "CPU s, median", "worst",
)  # fmt: skip


def score_program(
    program: Program,
    count: int,
    seed: str,
    done: Sequence[Score],
    begin: Callable[[Score], object] = lambda score: None,
) -> Iterator[Score]:
    """Yields the scores of a program's edits that are not done yet, until so many are kept.

    Args:
        program: Which is edited.
        count: Edits to be kept, those that are done among them.
        seed: Which edits are drawn.
        done: Scores of earlier commands.
        begin: Is given the score of the next edit if the process dies of it.
    """
    kept = sum(one.outcome == "kept" for one in done)
    known = {(one.file, one.node, one.kind) for one in done}
    if kept >= count:
        return
    judge = Judge(program)
    ran = judge.ran()
    edits = [edit for file in program.files for edit in edits_of(file) if (file, edit.line) in ran]
    for edit in draw(edits, f"{program.name} {seed}"):
        if (edit.file, edit.node, edit.kind) in known:
            continue
        begin(
            Score(
                program.name,
                edit.kind,
                edit.file,
                edit.line,
                edit.function,
                edit.node,
                edit.text,
                "crashed",
            )
        )
        scored = judge.score(edit)
        yield scored
        kept += scored.outcome == "kept"
        if kept >= count:
            return


def read_scores(file: Path) -> list[Score]:
    """Rows of an earlier command, with the one that it died of; a last line that was cut off is
    left out.
    """
    if (begun := _begun(file)).exists():
        with file.open("a", encoding="utf-8") as out:
            out.write(begun.read_text(encoding="utf-8"))
        begun.unlink()
    if not file.exists():
        return []
    whole, newline, _ = file.read_text(encoding="utf-8").rpartition("\n")
    file.write_text(whole + newline, encoding="utf-8")
    return [
        Score(**{**row, "found": tuple(row["found"])})
        for row in map(json.loads, whole.splitlines())
    ]


def remember(score: Score, file: Path | None) -> None:
    """Adds a row to a file of results."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        _begun(file).unlink(missing_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(score)) + "\n")


def _begun(file: Path) -> Path:
    """Where the row stands of which the process may die."""
    return file.with_suffix(".begun")


def table_of(scores: Sequence[Score]) -> Iterator[str]:
    """Lines of the table: a row for each program, one for each file that was edited, and one for
    all.
    """
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for by in (lambda one: one.program, lambda one: "/".join(Path(one.file).parts[-2:])):
        for name in dict.fromkeys(map(by, scores)):
            yield _row(name, [one for one in scores if by(one) == name])
    yield _row("all", scores)


def _row(name: str, scores: Sequence[Score]) -> str:
    outcomes = Counter(one.outcome for one in scores)
    kept = [one for one in scores if one.outcome == "kept"]
    seconds, removed = (
        sorted(found) or [0.0]
        for found in ([one.cpu_s for one in kept], [one.removed for one in kept])
    )
    counts = [str(sum(getattr(one, field) for one in kept)) for field in _FIELDS]
    drawn = [f"{len(kept)} of {len(scores)}", f"{outcomes['equivalent']}", f"{outcomes['crashed']}"]
    cpu_s = [f"{seconds[len(seconds) // 2]:.1f}", f"{seconds[-1]:.1f}"]
    return f"| {' | '.join([name, *drawn, *counts, f'{removed[len(removed) // 2]:.0%}', *cpu_s])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="locate random edits of code")
    parser.add_argument(
        "--count", type=int, default=25, help="faults of each program (default: 25)"
    )
    parser.add_argument("--seed", help="which edits are drawn (default: the commit)")
    parser.add_argument("--out", type=Path, help="folder that remembers what is done")
    options = parser.parse_args()
    logging.set_verbosity_error()  # edited loaders report at length what they miss
    seed = options.seed or seed_of_commit()
    file = None if options.out is None else options.out / f"{seed}.jsonl"
    scores = [] if file is None else read_scores(file)

    def begin(score: Score) -> None:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            _begun(file).write_text(json.dumps(asdict(score)) + "\n", encoding="utf-8")

    for program in find_programs().values():
        known = [one for one in scores if one.program == program.name]
        for one in score_program(program, options.count, seed, known, begin):
            scores.append(one)
            remember(one, file)
            if one.outcome == "kept" and not (one.segment and one.in_function and one.reproduces):
                print(f"  {one}", flush=True)
    print(f"seed {seed}", *table_of(scores), sep="\n")


if __name__ == "__main__":
    main()
