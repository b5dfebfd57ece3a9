"""`lockstep doctor selftest`: puts faults into backends, asks the doctor about each, and counts."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.doctor_faults.heldout import HELD_OUT
from benchmarks.doctor_faults.pairs import PAIRS
from benchmarks.doctor_faults.tuning import TUNING
from lockstep import exit_codes
from lockstep.doctor.examine import examine
from lockstep.doctor.selftest.controls import healthy_runs
from lockstep.doctor.selftest.fault import Case, Fault, Injected, build
from lockstep.doctor.selftest.ground import Ground
from lockstep.doctor.selftest.score import Row, markdown, row
from lockstep.runtime.progress import Progress, progress

Which = Literal["tuning", "heldout", "pairs", "controls", "all"]
HEALTHY_RUNS = 50
_QUARTERINGS = 5


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


def selftest(model: str | None, which: Which, out: Path | None = None, sweep: bool = False, seed: int = 0) -> int:
    """Runs a part of the benchmark and prints its table.

    Args:
        model: A folder that stands for the small random Llama; None: that one.
        which: Part of the benchmark.
        out: Folder of what is remembered and written; None: nothing is.
        sweep: Look for the smallest magnitude of each fault that is still named, instead.
        seed: Of models and prompts.

    Returns:
        The exit code: OK where no cause was named wrongly and no healthy case raised an alarm, else BROKEN.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        grounds = Path(root), model
        trials = [] if sweep else list(_trials(grounds, which, seed))
        total = len(trials) or None
        with progress(f"doctor selftest: {which}", total) as shown:
            bench = Bench(out / "cases.jsonl" if out is not None else None, shown)
            if sweep:
                text, rows = _swept(bench, grounds, which, seed)
            else:
                rows = [bench.row(trial) for trial in trials]
                text = markdown(rows)
    print(text)
    if out is not None:
        name = f"{which}-sweep" if sweep else which
        (out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        (out / f"{name}.json").write_text(json.dumps([_as_json(one) for one in rows], indent=1), encoding="utf-8")
    wrong = any(one.outcome in ("wrong", "false alarm") for one in rows)
    return exit_codes.BROKEN if wrong else exit_codes.OK


_Grounds = tuple[Path, str | None]
"""Where folders are written, and the user's model."""


def _trials(grounds: _Grounds, which: Which, seed: int) -> Iterator[Trial]:
    ground = Ground(*grounds, seed)
    for fault in _faults(which):
        yield _trial(ground, fault.large)
        yield _trial(ground, fault.small)
    if which in ("pairs", "all"):
        for pair in PAIRS:
            yield _trial(ground, *pair)
    if which in ("controls", "all"):
        for control, own in healthy_runs(HEALTHY_RUNS):
            other = Ground(*grounds, seed + own)
            yield Trial(f"{control.name}, seed {seed + own}", (), lambda c=control, g=other: c.build(g))


def _faults(which: Which) -> tuple[Fault, ...]:
    tuning = TUNING if which in ("tuning", "all") else ()
    return tuning + (HELD_OUT if which in ("heldout", "all") else ())


def _trial(ground: Ground, *injected: Injected) -> Trial:
    name = " + ".join(f"{one.fault.number} {one.fault.name} {one.magnitude:.3g}" for one in injected)
    expected = tuple(one.fault.causes for one in injected)
    return Trial(f"{name}, seed {ground.seed}", expected, lambda: build(ground, *injected))


def _swept(bench: Bench, grounds: _Grounds, which: Which, seed: int) -> tuple[str, list[Row]]:
    """Takes a quarter of each fault's magnitude until it is not named any more."""
    lines = ["| Fault | Magnitude counts | Smallest named | its mean e^&#124;Δ&#124; |", "|---|---|---|---|"]
    rows: list[Row] = []
    ground = Ground(*grounds, seed)
    for fault in _faults(which):
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
