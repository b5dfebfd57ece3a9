"""Puts faults into backends, asks the doctor about each, and counts: `lockstep doctor selftest`, and its benchmark."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from lockstep import exit_codes
from lockstep.doctor.examine import examine
from lockstep.doctor.selftest.controls import BRIEF, Control
from lockstep.doctor.selftest.fault import Case, Fault, Injected, build
from lockstep.doctor.selftest.faults import KEPT
from lockstep.doctor.selftest.ground import Ground
from lockstep.doctor.selftest.score import Row, markdown, row
from lockstep.report.progress import Progress, show_progress

_QUARTERINGS = 5


@dataclass(frozen=True)
class Suite:
    """The cases that a self-test goes through.

    Attributes:
        name: Of the files with its results.
        faults: Each is put in large and small.
        pairs: Faults that are put in together.
        healthy: Healthy configurations, each with what is added to the seed.
        ground: Makes the models, from a folder, the user's model and a seed.
        notes: Lines below the score.
    """

    name: str
    faults: tuple[Fault, ...]
    pairs: tuple[tuple[Injected, ...], ...] = ()
    healthy: tuple[tuple[Control, int], ...] = ()
    ground: Callable[[Path, str | None, int], Ground] = Ground
    notes: tuple[str, ...] = ()


BRIEF_SUITE = Suite(
    "brief",
    KEPT,
    healthy=tuple((control, 0) for control in BRIEF),
    notes=(
        f"{len(KEPT)} faults, each large and small, and {len(BRIEF)} healthy cases; in a checkout of the repository, "
        "python -m benchmarks.doctor_faults has all of them",
    ),
)
"""What `lockstep doctor selftest` goes through."""


@dataclass(frozen=True)
class Trial:
    """A case that is still to be built.

    Attributes:
        name: Of it, unique.
        expected: For each fault its right names.
        build: Makes it.
    """

    name: str
    expected: tuple[tuple[str, ...], ...]
    build: Callable[[], Case]


class Bench:
    """Examines cases, and remembers what came out, so that the same command goes on where it was stopped.

    Args:
        file: One JSON row for each case that is done; None: nothing is remembered.
        shown: Where progress is seen.
    """

    def __init__(self, file: Path | None, shown: Progress) -> None:
        self._file, self._shown = file, shown
        self._done = {one.name: one for one in _read(file)}
        self._count = 0

    def row(self, trial: Trial) -> Row:
        """What the doctor says about a case."""
        if trial.name not in self._done:
            with self._shown.phase(trial.name):
                self._done[trial.name] = _examined(trial)
            self._remember(self._done[trial.name])
        done = self._done[trial.name]
        self._count += 1
        self._shown.step(self._count, {}, 0)
        said = ", ".join(name for name, _ in done.named) or "no name"
        self._shown.note(f"{done.name}: {done.outcome}, {said} ({done.seconds:.1f} s)")
        return done

    def _remember(self, done: Row) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(done)) + "\n")


def selftest(
    model: str | None, out: Path | None = None, sweep: bool = False, seed: int = 0, suite: Suite = BRIEF_SUITE
) -> int:
    """Goes through cases and prints their table.

    Args:
        model: A folder that stands for the small random Llama; None: that one.
        out: Folder of what is remembered and written; None: nothing is.
        sweep: Look for the smallest magnitude of each fault that is still named, instead.
        seed: Of models and prompts.
        suite: The cases.

    Returns:
        The exit code: OK where no cause was named wrongly and no healthy case raised an alarm, else BROKEN.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        grounds = partial(suite.ground, Path(root), model)
        trials = [] if sweep else list(_trials(grounds, suite, seed))
        total = len(trials) or None
        with show_progress(f"doctor selftest: {suite.name}", total) as shown:
            bench = Bench(out / "cases.jsonl" if out is not None else None, shown)
            if sweep:
                text, rows = _swept(bench, grounds(seed), suite.faults)
            else:
                rows = [bench.row(trial) for trial in trials]
                text = "\n".join([markdown(rows), *(f"- {note}" for note in suite.notes)])
    print(text)
    if out is not None:
        name = f"{suite.name}-sweep" if sweep else suite.name
        (out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        (out / f"{name}.json").write_text(json.dumps([_as_json(one) for one in rows], indent=1), encoding="utf-8")
    wrong = any(one.outcome in ("wrong", "false alarm") for one in rows)
    return exit_codes.BROKEN if wrong else exit_codes.OK


def _trials(grounds: Callable[[int], Ground], suite: Suite, seed: int) -> Iterator[Trial]:
    ground = grounds(seed)
    for fault in suite.faults:
        yield _trial(ground, fault.large)
        yield _trial(ground, fault.small)
    for pair in suite.pairs:
        yield _trial(ground, *pair)
    for control, own in suite.healthy:
        other = grounds(seed + own)
        yield Trial(f"{control.name}, seed {seed + own}", (), lambda c=control, g=other: c.build(g))


def _trial(ground: Ground, *injected: Injected) -> Trial:
    name = " + ".join(f"{one.fault.number} {one.fault.name} {one.magnitude:.3g}" for one in injected)
    expected = tuple(one.fault.causes for one in injected)
    return Trial(f"{name}, seed {ground.seed}", expected, lambda: build(ground, *injected))


def _swept(bench: Bench, ground: Ground, faults: Iterable[Fault]) -> tuple[str, list[Row]]:
    """Takes a quarter of each fault's magnitude until it is not named any more."""
    lines = ["| Fault | Magnitude counts | Smallest named | its mean e^&#124;Δ&#124; |", "|---|---|---|---|"]
    rows: list[Row] = []
    for fault in faults:
        least, error = None, 1.0
        for quartering in range(_QUARTERINGS):
            magnitude = fault.magnitudes[0] / 4**quartering
            done = bench.row(_trial(ground, fault.at(magnitude)))
            rows.append(done)
            if done.outcome != "right":
                break
            least, error = magnitude, done.mult_prob_error
        said = "none" if least is None else f"{least:.3g} | {error:.4g}"
        lines.append(f"| {fault.number} {fault.name} | {fault.unit} | {said} |")
    return "\n".join(lines), rows


def _examined(trial: Trial) -> Row:
    start = time.monotonic()
    case = trial.build()
    try:
        diagnosis = examine(case.train, case.infer, case.folder, case.requests, case.sampling)
        return row(trial.name, trial.expected, diagnosis, time.monotonic() - start)
    finally:
        case.close()


def _read(file: Path | None) -> Iterator[Row]:
    """Rows that were remembered; a last line that was cut off is taken out, and its case done again."""
    if file is None or not file.exists():
        return
    whole, newline, _ = file.read_text(encoding="utf-8").rpartition("\n")
    file.write_text(whole + newline, encoding="utf-8")
    for line in whole.splitlines():
        fields = json.loads(line)
        expected = tuple(tuple(right) for right in fields.pop("expected"))
        named = tuple((name, side) for name, side in fields.pop("named"))
        yield Row(expected=expected, named=named, **fields)


def _as_json(done: Row) -> dict[str, object]:
    return {**asdict(done), "outcome": done.outcome}
