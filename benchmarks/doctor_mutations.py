"""Score of `lockstep_doctor.locate` on faults that nobody wrote: random edits of code that models run, and of loaders.

    python -m benchmarks.doctor_mutations [--count 25] [--seed TEXT] [--out FOLDER] [--programs NAME ...]

Edited are five families' code in `transformers`, the masks and angles that families share there, Lockstep's attention,
what loads a folder, and what carries weights to a sampler. Drawn are edits of functions that run. Kept are those after
which the program runs and is farther from the original than three times what rounding makes. The truth is the line that
was edited. Each commit draws others, unless `--seed` says which. With `--out` the same command goes on where it was
stopped; `--count` of a later one may be larger.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from transformers.utils import logging

from benchmarks.mutate_code import draw, edits_of, seed_of_commit
from benchmarks.mutated_programs import Program, find_programs
from benchmarks.mutation_score import Judge, Score

_FIELDS = ("segment", "in_function", "in_line", "reproduces", "first", "bare")
_HEADER = (
    "| Program | Kept of drawn | Equivalent | Crashed | Segment | Function in 3 | Line in 3 | Reproduction "
    "| First difference | Bare 1.05 | CPU s, median | worst |"
)


def score_program(program: Program, count: int, seed: str, done: Sequence[Score]) -> Iterator[Score]:
    """Yields the scores of a program's edits that are not done yet, until so many are kept."""
    kept, known = sum(one.outcome == "kept" for one in done), {(one.file, one.node, one.kind) for one in done}
    if kept >= count:
        return
    judge = Judge(program)
    ran = judge.ran()
    edits = [edit for file in program.files for edit in edits_of(file) if edit.function in ran]
    for edit in draw(edits, f"{program.name} {seed}"):
        if (edit.file, edit.node, edit.kind) in known:
            continue
        scored = judge.score(edit)
        yield scored
        kept += scored.outcome == "kept"
        if kept >= count:
            return


def read_scores(file: Path) -> list[Score]:
    """Rows of an earlier command; a last line that was cut off is left out."""
    if not file.exists():
        return []
    whole, newline, _ = file.read_text(encoding="utf-8").rpartition("\n")
    file.write_text(whole + newline, encoding="utf-8")
    return [Score(**{**row, "found": tuple(row["found"])}) for row in map(json.loads, whole.splitlines())]


def table_of(scores: Sequence[Score]) -> Iterator[str]:
    """Lines of the table: a row for each program, and one for all."""
    yield _HEADER
    yield "|---" * _HEADER.count(" | ") + "|---|"
    for name in dict.fromkeys(one.program for one in scores):
        yield _row(name, [one for one in scores if one.program == name])
    yield _row("all", scores)


def _row(name: str, scores: Sequence[Score]) -> str:
    outcomes = Counter(one.outcome for one in scores)
    kept = [one for one in scores if one.outcome == "kept"]
    seconds = sorted(one.cpu_s for one in kept) or [0.0]
    shares = " | ".join(f"{sum(getattr(one, field) for one in kept)}" for field in _FIELDS)
    return (
        f"| {name} | {len(kept)} of {len(scores)} | {outcomes['equivalent']} | {outcomes['crashed']} | {shares} "
        f"| {seconds[len(seconds) // 2]:.1f} | {seconds[-1]:.1f} |"
    )


def main() -> None:
    programs = find_programs()
    parser = argparse.ArgumentParser(description="locate random edits of code")
    parser.add_argument("--count", type=int, default=25, help="faults of each program (default: 25)")
    parser.add_argument("--seed", help="which edits are drawn (default: the commit)")
    parser.add_argument("--out", type=Path, help="folder that remembers what is done")
    parser.add_argument("--programs", nargs="*", default=list(programs), choices=list(programs))
    options = parser.parse_args()
    logging.set_verbosity_error()  # edited loaders report at length what they miss
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # lines of other threads are not seen
    seed = options.seed or seed_of_commit()
    file = None if options.out is None else options.out / f"{seed}.jsonl"
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    scores = [] if file is None else read_scores(file)
    for name in options.programs:
        for one in score_program(programs[name], options.count, seed, [one for one in scores if one.program == name]):
            scores.append(one)
            if file is not None:
                with file.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(asdict(one)) + "\n")
            if one.outcome == "kept" and not (one.segment and one.in_function and one.reproduces):
                print(f"  {one}", flush=True)
    print(f"seed {seed}", *table_of(scores), sep="\n")


if __name__ == "__main__":
    main()
