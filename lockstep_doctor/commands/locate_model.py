"""`lockstep doctor locate`: finds the place where two engines disagree about a model, and proves it.

location.json   what was found, by pair
repro/          by pair, a script that fails on the fault and passes where it is mended, with its inputs
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.config.loading import Loaded
from lockstep.models.folder import context_of, read_config
from lockstep.report.progress import Progress, show_progress
from lockstep.whole_files import write_whole
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.commands.locate_engines import REFERENCE, EngineChoice, EnginePair, find_variants, pairs_of
from lockstep_doctor.commands.session import choose_results
from lockstep_doctor.examine import PairExamination, examine
from lockstep_doctor.findings import describe_examination, tree_of
from lockstep_doctor.hf import open_witnesses
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.reproduction import write_engine_reproduction, write_reproduction
from lockstep_doctor.table.options import DoctorRecipe
from lockstep_doctor.table.plan import Cell, PromptSource, requests_for
from lockstep_doctor.tap import Tap

LOCATION, REPRODUCTION = "location.json", "repro"
_LONGEST, _REQUESTS = 100, 8


@dataclass(frozen=True)
class Located:
    """A comparison, what was found, and the script that shows it."""

    comparison: EnginePair
    found: PairExamination
    script: Path | None

    @property
    def is_said(self) -> bool:
        """True but for an engine that agrees with itself."""
        return not self.comparison.is_beside or not self.found.agrees or bool(self.found.left_out)


def locate_model(loaded: Loaded) -> list[PairExamination]:
    """Examines every pair, prints what was found, leaves it in the folder of the results, and returns it.

    Engines that agree with another one and not with themselves follow the pairs. What was not compared, for want of
    time, is left out of the last.

    Raises:
        ValueError: If the model, its prompts or an engine cannot be used.
    """
    recipe = loaded.expect(DoctorRecipe)
    end = time.monotonic() + (recipe.grid.budget_s or math.inf)
    results = choose_results(loaded)
    with results.open() as started, show_progress(f"{recipe.model.path} → {results.folder}") as shown:
        with shown.phase("draw requests"):
            drawn = draw_requests(recipe, PromptSource(recipe))
        started()
        with shown.phase("open float64"):
            computed = EngineChoice.of(recipe, REFERENCE).options
            witnesses = open_witnesses(Path(recipe.model.path), computed.device, torch.float64, computed.dtype)
        folder = results.folder / REPRODUCTION
        found = _Locator(recipe, drawn, lambda: time.monotonic() < end, witnesses, folder, shown).locate()
    trees = [tree_of(one.found) | {"reproduction": one.script and str(one.script)} for one in found]
    write_whole(results.folder / LOCATION, [json.dumps(trees, indent=1).encode(), b"\n"])
    for one in found:
        print("\n".join(describe_examination(one.found)))
        print(f"  reproduction: {one.script}\n" if one.script else "")
    print(f"location: {results.folder / LOCATION}")
    return [one.found for one in found]


def draw_requests(recipe: DoctorRecipe, source: PromptSource) -> Batch:
    """Draws responses to the prompts of the table by plain `transformers`."""
    context = context_of(read_config(recipe.model.path))
    length = min(*recipe.grid.lengths, _LONGEST, context // 2)
    method = min(recipe.grid.methods, key=lambda one: (one.temperature == 0, one.name != "T=1"))
    cell = Cell(length, recipe.grid.data[0], method, _REQUESTS)
    requests = requests_for(cell, source.prompts(cell.data, context - length), _REQUESTS, recipe.seed)
    backend = HFBackend(recipe.model.path, recipe.learner.dtype, _REQUESTS, recipe.learner.device)
    return backend.generate(requests, cell.sampling)


@dataclass(frozen=True)
class _Locator:
    """Examines the comparisons of a recipe.

    Attributes:
        drawn: The requests.
        in_time: True while time is left.
        witnesses: The model in float64, and in the type of the engines.
        folder: Of the scripts.
    """

    recipe: DoctorRecipe
    drawn: Batch
    in_time: Callable[[], bool]
    witnesses: Sequence[Tap]
    folder: Path
    shown: Progress

    def locate(self) -> list[Located]:
        """Two engines beside each other; those that agree, beside themselves among other sequences, and decoding."""
        pairs = pairs_of(self.recipe)
        prompt = int(self.drawn.per_sample((~self.drawn.mask).long()).min())
        found, sound, left_out = list[Located](), set[str](), list[str]()
        for one in [*pairs, *find_variants(pairs, prompt)]:
            if one.is_beside and str(one.reference) not in sound:
                continue
            if found and not self.in_time():
                left_out.append(str(one))
                continue
            with self.shown.phase(str(one)), one.open() as taps:
                outcome = self._examine(one, taps, list(self.drawn.sequences()))
                found.append(Located(one, outcome, self._reproduce(one, taps, outcome)))
            if outcome.agrees:
                sound |= set(map(str, one.sides))
            elif one.is_beside:
                sound.discard(str(one.reference))
        last = found[-1].found
        found[-1] = replace(found[-1], found=replace(last, left_out=[*last.left_out, *left_out]))
        return [one for one in found if one.is_said]

    def _examine(self, one: EnginePair, taps: tuple[Tap, Tap], requests: Sequence[Tensor]) -> PairExamination:
        witness, rounded = self.witnesses

        def note(phase: str) -> None:
            self.shown.note(f"{one}: {phase}")

        return examine(*taps, requests, witness, [rounded, rounded], note, in_time=self.in_time)

    def _reproduce(self, one: EnginePair, taps: tuple[Tap, Tap], found: PairExamination) -> Path | None:
        """The script that shows what was found; None: it is no place."""
        if not found.small.places:
            return None
        faulty = int(found.small.places[0].wrong != [taps[0].name])
        tap, choice = taps[faulty], one.sides[faulty]
        folder = self.folder / f"{one.reference}-{one.other}".replace(" ", "-")
        if isinstance(tap, ModuleTap) and tap.builder:
            return write_reproduction(folder, tap, found.small, found.smallest)
        return write_engine_reproduction(
            folder, choice.engine, choice.folder, choice.options, found.small, found.smallest
        )
