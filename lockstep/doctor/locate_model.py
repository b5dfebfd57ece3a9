"""`lockstep doctor locate`: finds the place where two engines disagree about a model, and proves it.

location.json   what was found, by pair; also in `report.json`, where a table lies there
repro/          by pair, a script that fails on the fault and passes where it is mended, with its inputs
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.config.loading import Loaded
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.locate_cost import LocateEstimate, LocateTime, estimate_locate, free_bytes
from lockstep.doctor.locate_engines import REFERENCE, EngineChoice, EnginePair, find_variants, pairs_of
from lockstep.doctor.options import DoctorRecipe
from lockstep.doctor.plan import Cell, PromptSource, requests_for
from lockstep.doctor.report import write_page
from lockstep.doctor.session import choose_results
from lockstep.models.device import resolve_device
from lockstep.models.folder import context_of, read_config
from lockstep.report.doctor_folder import REPORT
from lockstep.report.progress import Progress, show_progress
from lockstep.units import readable
from lockstep.whole_files import write_whole
from lockstep_doctor.examine import Pair, PairExamination, examine
from lockstep_doctor.findings import describe_examination, tree_of
from lockstep_doctor.hf import open_witnesses
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.reproduction import Reproducible, write_engine_reproduction, write_reproduction
from lockstep_doctor.tap import Tap

LOCATION, REPRODUCTION = "location.json", "repro"
_LONGEST, _REQUESTS = 100, 8


@dataclass(frozen=True)
class Located:
    """A comparison, what was found, the script that shows it, and what was read."""

    comparison: EnginePair
    found: PairExamination
    script: Path | None
    read: str

    @property
    def is_said(self) -> bool:
        """True but for an engine that agrees with itself."""
        return not self.comparison.is_beside or not self.found.agrees or bool(self.found.left_out)


def locate_model(loaded: Loaded, begun: float | None = None) -> list[PairExamination]:
    """Examines every pair, prints what was found, leaves it in the folder of the results, and returns it.

    Engines that agree with another one and not with themselves follow the pairs. What was not compared, for want of
    time, is left out of the last.

    Args:
        begun: When its budget of time began, by `time.monotonic`; None: now.

    Raises:
        ValueError: If the model, its prompts or an engine cannot be used, or there is no time for the first pair.
    """
    begun, recipe = time.monotonic() if begun is None else begun, loaded.expect(DoctorRecipe)
    results = choose_results(loaded)
    with results.open() as started, show_progress(f"{recipe.model.path} → {results.folder}") as shown:
        memory = estimate_largest(recipe)
        shown.note(memory.sentence)
        memory.require(free_bytes(resolve_device(recipe.learner.device)))
        with shown.phase("draw requests"):
            drawn = draw_requests(recipe, PromptSource(recipe))
        started()
        bound = LocateTime(recipe.grid.budget_s, begun, drawn)
        with shown.phase("open float64"):
            computed = EngineChoice.of(recipe, REFERENCE).options
            witnesses = open_witnesses(Path(recipe.model.path), computed.device, torch.float64, computed.dtype)
            bound.measure_witnesses(witnesses)
        found = _Locator(recipe, memory, bound, witnesses, results.folder / REPRODUCTION, shown).locate()
    _write(results.folder, found)
    for one in found:
        print("\n".join(describe_examination(one.found)))
        print(f"  read: {one.read}")
        print(f"  reproduction: {one.script}\n" if one.script else "")
    print(f"location: {results.folder / LOCATION}")
    return [one.found for one in found]


def estimate_largest(recipe: DoctorRecipe) -> LocateEstimate:
    """Estimates the memory of the largest comparison: of two engines, or of one beside itself."""
    pairs = pairs_of(recipe)
    context = context_of(read_config(recipe.model.path))
    tokens = min(_choose_length(recipe) + recipe.data.max_prompt_tokens, context)
    estimates = [
        estimate_locate(recipe.model.path, [(one.is_learner, one.options.dtype) for one in comparison.sides], tokens)
        for comparison in (*pairs, *find_variants(pairs, 1))
    ]
    return max(estimates, key=lambda one: one.total)


def _choose_length(recipe: DoctorRecipe) -> int:
    """New tokens of a sequence."""
    return min(*recipe.grid.lengths, _LONGEST, context_of(read_config(recipe.model.path)) // 2)


def draw_requests(recipe: DoctorRecipe, source: PromptSource) -> Batch:
    """Draws responses to the prompts of the table by plain `transformers`."""
    context = context_of(read_config(recipe.model.path))
    length = _choose_length(recipe)
    method = min(recipe.grid.methods, key=lambda one: (one.temperature == 0, one.name != "T=1"))
    cell = Cell(length, recipe.grid.data[0], method, _REQUESTS)
    requests = requests_for(cell, source.prompts(cell.data, context - length), _REQUESTS, recipe.seed)
    backend = HFBackend(recipe.model.path, recipe.learner.dtype, _REQUESTS, recipe.learner.device)
    return backend.generate(requests, cell.sampling)


@dataclass(frozen=True)
class _Locator:
    """Examines the comparisons of a recipe.

    Attributes:
        memory: Of a pair.
        bound: On the time.
        witnesses: The model in float64, and in the type of the engines.
        folder: Of the scripts.
    """

    recipe: DoctorRecipe
    memory: LocateEstimate
    bound: LocateTime
    witnesses: Sequence[Tap]
    folder: Path
    shown: Progress

    def locate(self) -> list[Located]:
        """Two engines beside each other; those that agree, beside themselves among other sequences, and decoding."""
        pairs = pairs_of(self.recipe)
        comparisons = [*pairs, *find_variants(pairs, self.bound.prompt)]
        found, sound, left_out = list[Located](), set[str](), list[str]()
        for place, one in enumerate(comparisons):
            if one.is_beside and str(one.reference) not in sound:
                continue
            outcome = self._compare(comparisons[place:], is_first=not found)
            if outcome is None:
                left_out.append(str(one))
                continue
            found.append(outcome)
            if outcome.found.agrees:
                sound |= set(map(str, one.sides))
            elif one.is_beside:
                sound.discard(str(one.reference))
        last = found[-1].found
        if left_out:
            found[-1] = replace(found[-1], found=replace(last, left_out=[*last.left_out, *left_out]))
        return [one for one in found if one.is_said]

    def _compare(self, left: Sequence[EnginePair], is_first: bool) -> Located | None:
        """Examines the first comparison of those that are left; None: there is no time for it."""
        one = left[0]
        if not is_first and not self.bound.is_left():
            return None
        with self.shown.phase(str(one)), one.open() as taps:
            self.bound.measure(one, taps)
            planned, requests = self.bound.share(left)
            if not planned and is_first:
                raise self.bound.refuse(one)
            if not planned:
                return None
            agree, place = (seconds / 60 for seconds in self.bound.predict(planned, len(requests)))
            self.shown.note(
                f"predicted: {agree:.1f} minutes, and up to {place:.1f} more where two disagree, for {len(planned)} of "
                f"{len(left)} comparisons that are left; read: {self.bound.describe(requests)}"
            )
            found = self._examine(one, taps, requests)
            read = self.bound.describe(requests[: found.requests])
            return Located(one, found, self._reproduce(one, taps, found), read)

    def _examine(self, one: EnginePair, taps: tuple[Tap, Tap], requests: Sequence[Tensor]) -> PairExamination:
        """Examines two open engines on requests; what was drawn and is not among them is left out, too."""
        witness, rounded = self.witnesses

        def note(phase: str) -> None:
            self.shown.note(f"{one}: {phase}")

        scarce = list[str]()

        def switches() -> Mapping[str, Pair]:
            free = free_bytes(torch.device(one.reference.options.device))
            if not 0 < free < self.memory.again + self.memory.values:
                return one.switches()
            note(f"other settings are not measured: {readable(free)} are free")
            scarce.extend(f"the gap {name}" for name in one.switches())
            return {}

        found = examine(*taps, requests, witness, [rounded, rounded], switches, note, in_time=self.bound.is_left)
        return replace(found, left_out=[*self.bound.list_dropped(requests), *found.left_out, *scarce])

    def _reproduce(self, one: EnginePair, taps: tuple[Tap, Tap], found: PairExamination) -> Path | None:
        """The script that shows what was found; None: it is no place."""
        if not found.small.places:
            return None
        faulty = int(found.small.places[0].wrong != [taps[0].name])
        tap, choice = taps[faulty], one.sides[faulty]
        folder = self.folder / f"{one.reference}-{one.other}".replace(" ", "-")
        if isinstance(tap, ModuleTap) and tap.builder:
            return write_reproduction(folder, tap, found.small, found.smallest)
        if isinstance(tap, Reproducible):
            return tap.reproduce(folder, found.small, found.smallest)
        return write_engine_reproduction(
            folder, choice.engine, choice.folder, choice.options, found.small, found.smallest
        )


def summarize(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what a page shows: the comparison with the largest gap, with what was left out of any."""
    left_out = dict.fromkeys(what for tree in trees for what in tree["left_out"])
    return {**max(trees, key=lambda tree: tree["gap"]), "left_out": list(left_out)}


def _write(folder: Path, found: Sequence[Located]) -> None:
    """Writes what was found, and adds a summary to the table's report, where there is one."""
    trees: list[dict[str, Any]] = [
        tree_of(one.found) | {"read": one.read, "reproduction": one.script and str(one.script)} for one in found
    ]
    write_whole(folder / LOCATION, [json.dumps(trees, indent=1).encode(), b"\n"])
    path = folder / REPORT
    if not path.is_file():
        return
    report = json.loads(path.read_text(encoding="utf-8"))
    report["location"] = summarize(trees)
    write_whole(path, [json.dumps(report, indent=1).encode(), b"\n"])
    write_page(folder)
