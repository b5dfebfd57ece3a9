"""The run of the lists: faults are put into backends, each is located, and what was found is counted."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.doctor_faults.backend_tap import BackendTap, process
from benchmarks.doctor_faults.controls import Control
from benchmarks.doctor_faults.fault import Case, Fault, Injected, build
from benchmarks.doctor_faults.lists import MECHANISM_OF
from benchmarks.doctor_faults.models import Ground
from benchmarks.doctor_faults.places import COLUMN
from benchmarks.doctor_faults.score import Row, markdown
from lockstep import exit_codes
from lockstep.models.heads import PLAIN
from lockstep.models.precision import TORCH_TYPES
from lockstep.report.progress import Progress, show_progress
from lockstep.types import SamplingParams
from lockstep_doctor import ModuleTap, PairExamination, examine
from lockstep_doctor.locate import nats

_QUARTERINGS, _REQUESTS = 5, 8
_FINE, _NOISES = 1e-3, 8.0
"""Nats that a column may be from the logits of a sequence alone; and how often what its type rounds."""


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


@dataclass(frozen=True)
class Trial:
    """A case that is still to be built.

    Attributes:
        name: Of it, unique.
        group: Split and mechanism of its fault, or what else it is.
        expected: For each fault its kinds.
        build: Makes it.
    """

    name: str
    group: tuple[str, str]
    expected: tuple[tuple[str, ...], ...]
    build: Callable[[], Case]


class Bench:
    """Examines cases, and remembers what came out, so that the same command resumes where it was stopped.

    Args:
        file: One JSON row for each case that is done; None: nothing is remembered.
        shown: Where progress is seen.
    """

    def __init__(self, file: Path | None, shown: Progress) -> None:
        self._file, self._shown = file, shown
        self._done = {one.name: one for one in _read(file)}
        self._count = 0

    def row(self, trial: Trial) -> Row:
        """Returns what the doctor says about a case."""
        if trial.name not in self._done:
            with self._shown.phase(trial.name):
                self._done[trial.name] = _examined(trial)
            self._remember(self._done[trial.name])
        done = self._done[trial.name]
        self._count += 1
        self._shown.step(self._count, {}, 0)
        said = ", ".join(done.found) or "no place"
        self._shown.note(f"{done.name}: {done.outcome}, {said} ({done.seconds:.1f} s)")
        return done

    def _remember(self, done: Row) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(done)) + "\n")


def selftest(model: str | None, out: Path | None = None, sweep: bool = False, seed: int = 0, *, suite: Suite) -> int:
    """Goes through cases and prints their table.

    Args:
        model: A folder that stands for the small random Llama; None: that one.
        out: Folder of what is remembered and written; None: nothing is.
        sweep: Look for the smallest magnitude of each fault that is still found, instead.
        seed: Of models and prompts.
        suite: The cases.

    Returns:
        The exit code: OK where no place was found that has no fault and no healthy case raised an alarm, else BROKEN.
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
        yield Trial(f"{control.name}, seed {seed + own}", ("–", "healthy"), (), lambda c=control, g=other: c.build(g))


def _trial(ground: Ground, *injected: Injected) -> Trial:
    name = " + ".join(f"{one.fault.number} {one.fault.name} {one.magnitude:.3g}" for one in injected)
    first, *others = (one.fault for one in injected)
    group = (first.split, "pairs" if others else MECHANISM_OF[first.number])
    expected = tuple(one.fault.causes for one in injected)
    return Trial(f"{name}, seed {ground.seed}", group, expected, lambda: build(ground, *injected))


def _swept(bench: Bench, ground: Ground, faults: Iterable[Fault]) -> tuple[str, list[Row]]:
    """Takes a quarter of each fault's magnitude until it is not found any more."""
    lines = ["| Fault | Magnitude counts | Smallest found | its mean e^&#124;Δ&#124; |", "|---|---|---|---|"]
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
    """Both sides beside each other on what one of them drew."""
    start = time.process_time()
    case = trial.build()
    try:
        drawn = case.infer.generate(case.requests[:_REQUESTS], case.sampling)
        scored = case.train.score(drawn)
        taps = (
            BackendTap(case.train, "train", drawn, scored),
            BackendTap(case.infer, "infer", drawn, drawn["sampler_logprob"]),
        )
        types = [TORCH_TYPES[side.settings()["dtype"]] for side in (case.train, case.infer)]
        witness, *rounded = (_plain(case.folder, dtype, drawn.sampling or PLAIN) for dtype in (torch.float64, *types))
        sequences = list(drawn.sequences())
        own = max(_FINE, _NOISES * max(_measure_noise(witness, tap, sequences[0]) for tap in rounded))
        found = examine(*taps, sequences, witness, rounded, delivered=own)
        off = (scored - drawn["sampler_logprob"])[drawn.mask].double()
        probabilities = scored[drawn.mask].exp() - drawn["sampler_logprob"][drawn.mask].exp()
        return Row(
            trial.name,
            trial.group,
            trial.expected,
            tuple(dict.fromkeys(_stages(found))),
            not found.agrees,
            float(off.abs().exp().mean()),
            float(probabilities.abs().mean()),
            time.process_time() - start,
        )
    finally:
        case.close()


def _measure_noise(witness: ModuleTap, rounded: ModuleTap, tokens_T: Tensor) -> float:
    """Nats by which a type rounds: a column of a batch may be off by several of them from what one sequence gives."""
    return nats(witness.run(tokens_T, {}).logits, rounded.run(tokens_T, {}).logits, tokens_T)


def _stages(found: PairExamination) -> Iterator[str]:
    yield from (
        place.segments[0].end.stage.partition(".")[0]
        if place.segments[0].end.stage.startswith("rotary")
        else place.segments[0].end.stage
        for place in found.location.places
    )
    if found.columns or (found.location.noisy and not found.location.places):
        yield COLUMN


def _plain(folder: str, dtype: torch.dtype, sampling: SamplingParams) -> ModuleTap:
    """Plain `transformers` in a type."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    model.set_experts_implementation("eager")
    return ModuleTap(
        model,
        str(dtype),
        read=lambda m, tokens_T: process(m(input_ids=tokens_T[None], use_cache=False).logits[0], sampling),
    )


def _read(file: Path | None) -> Iterator[Row]:
    """Rows that were remembered; a last line that was cut off is taken out, and its case done again."""
    if file is None or not file.exists():
        return
    whole, newline, _ = file.read_text(encoding="utf-8").rpartition("\n")
    file.write_text(whole + newline, encoding="utf-8")
    for line in whole.splitlines():
        fields = json.loads(line)
        expected = tuple(tuple(right) for right in fields.pop("expected"))
        yield Row(expected=expected, group=tuple(fields.pop("group")), found=tuple(fields.pop("found")), **fields)


def _as_json(done: Row) -> dict[str, object]:
    return {**asdict(done), "outcome": done.outcome}
