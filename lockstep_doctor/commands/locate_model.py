"""`lockstep doctor locate`: finds and proves the place where two engines disagree on a model.

location.json   results by pair
repro/          for each pair, a script that fails on the fault and passes once it is fixed
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from lockstep.config.loading import LoadedRecipe
from lockstep.core.batch import Batch
from lockstep.models.device import resolve_device
from lockstep.models.folder import find_context_length, read_config
from lockstep.models.precision import TORCH_TYPES
from lockstep.report.progress import RunProgress, show_progress
from lockstep.system.whole_files import write_whole
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.commands.session import choose_results
from lockstep_doctor.engines import EngineOptions, find_engine
from lockstep_doctor.examine import PairExamination, examine
from lockstep_doctor.findings import describe_examination, tree_of
from lockstep_doctor.hf import open_witnesses
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.reproduction import write_engine_reproduction, write_reproduction
from lockstep_doctor.table.options import DoctorRecipe, ranks_of
from lockstep_doctor.table.plan import PromptSource, TableCell, requests_for
from lockstep_doctor.tap import Tap

LOCATION = "location.json"
REPRODUCTION = "repro"
_LONGEST = 100
_REQUESTS = 8
_LEARNERS = ("torch", "megatron")
_SAMPLERS = {"torch": "torch_sampler", "hf": "hf"}
_NEIGHBORS = 2
"""Number of sequences packed before the one that is read."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine and its options."""

    engine: str
    folder: Path
    options: EngineOptions

    @classmethod
    def from_recipe(cls, recipe: DoctorRecipe, name: str) -> EngineChoice:
        """The engine of a backend's name, such as `torch-tp2`."""
        engine = name.partition("-")[0]
        sizes = {key: size for key, size in ranks_of(name).model_dump().items() if size > 1}
        device = str(resolve_device(recipe.learner.device))
        if engine == "vllm":
            settings = recipe.sampler.vllm.model_dump(exclude_defaults=True)
        else:
            settings = {}
        options = EngineOptions(TORCH_TYPES[recipe.learner.dtype], device, sizes, settings=settings)
        return cls(engine, Path(recipe.model.path), options)

    def __str__(self) -> str:
        sizes = "".join(f"{key}{size}" for key, size in self.options.parallel.items())
        ways = [" among others"] * bool(self.options.neighbors) + [" by decoding"] * (
            self.options.prompt is not None
        )
        return "".join([self.engine.replace("_", " "), f"-{sizes}" if sizes else "", *ways])

    def with_options(self, **options: Any) -> EngineChoice:
        """The engine with changed options."""
        return replace(self, options=replace(self.options, **options))

    def open_tap(self) -> AbstractContextManager[Tap]:
        """Context manager that opens the engine."""
        return find_engine(self.engine)(self.folder, self.options)

    def list_variants(self, prompt: int) -> Iterator[EngineChoice]:
        """Variants of the engine that must compute the same numbers: packed with other sequences,
        and by decoding.
        """
        if self.engine in _LEARNERS:
            yield self.with_options(neighbors=_NEIGHBORS)
        if self.engine in _SAMPLERS and not self.options.parallel:
            yield replace(self, engine=_SAMPLERS[self.engine]).with_options(prompt=prompt)

    def reproduce_fault(self, folder: Path, tap: Tap, found: PairExamination) -> Path:
        """Writes the reproduction script of this engine's fault."""
        if isinstance(tap, ModuleTap) and tap.builder:
            return write_reproduction(folder, tap, found.location, found.tokens)
        return write_engine_reproduction(
            folder, self.engine, self.folder, self.options, found.location, found.tokens
        )


@dataclass(frozen=True)
class LocationReport:
    """An examination and its reproduction script."""

    found: PairExamination
    script: Path | None


def locate_model(loaded: LoadedRecipe) -> list[PairExamination]:
    """Examines every pair, prints and writes the results, and returns them.

    After the pairs come engines that agree with another engine, but not with their own variants.

    Raises:
        ValueError: The model, its prompts or an engine cannot be used.
    """
    recipe = loaded.expect_recipe(DoctorRecipe)
    results = choose_results(loaded)
    with (
        results.open_locked() as started,
        show_progress(f"{recipe.model.path} → {results.folder}") as shown,
    ):
        with shown.phase("draw requests"):
            drawn = draw_requests(recipe, PromptSource(recipe))
        started()
        found = list(_locate_pairs(recipe, drawn, results.folder / REPRODUCTION, shown))
    trees = [tree_of(one.found) | {"reproduction": one.script and str(one.script)} for one in found]
    write_whole(results.folder / LOCATION, [json.dumps(trees, indent=1).encode(), b"\n"])
    for one in found:
        print("\n".join(describe_examination(one.found)))
        print(f"  reproduction: {one.script}\n" if one.script else "")
    print(f"location: {results.folder / LOCATION}")
    return [one.found for one in found]


def draw_requests(recipe: DoctorRecipe, source: PromptSource) -> Batch:
    """Draws responses to the table's prompts with plain `transformers`."""
    context = find_context_length(read_config(recipe.model.path))
    length = min(*recipe.grid.lengths, _LONGEST, context // 2)
    method = min(recipe.grid.methods, key=lambda one: (one.temperature == 0, one.name != "T=1"))
    cell = TableCell(length, recipe.grid.data[0], method, _REQUESTS)
    requests = requests_for(
        cell, source.read_prompts(cell.data, context - length), _REQUESTS, recipe.seed
    )
    backend = HFBackend(recipe.model.path, recipe.learner.dtype, _REQUESTS, recipe.learner.device)
    return backend.generate(requests, cell.sampling)


def _locate_pairs(
    recipe: DoctorRecipe, drawn: Batch, folder: Path, shown: RunProgress
) -> Iterator[LocationReport]:
    """Examines pairs of engines, then the variants of engines that agree with another engine."""
    with shown.phase("open float64"):
        computed = EngineChoice.from_recipe(recipe, "hf").options
        witness, rounded = open_witnesses(
            Path(recipe.model.path), computed.device, torch.float64, computed.dtype
        )

    def compare_engines(reference: EngineChoice, other: EngineChoice) -> LocationReport:
        name = f"{reference}-{other}".replace(" ", "-")
        with (
            shown.phase(f"{reference} vs {other}"),
            reference.open_tap() as right,
            other.open_tap() as own,
        ):
            found = examine(right, own, list(drawn.sequences()), witness, [rounded] * 2)
            if not found.location.places:
                return LocationReport(found, None)
            if found.location.places[0].wrong_engines == [right.name]:
                return LocationReport(found, reference.reproduce_fault(folder / name, right, found))
            return LocationReport(found, other.reproduce_fault(folder / name, own, found))

    engines = [EngineChoice.from_recipe(recipe, name) for name in recipe.backends]
    sound = set[str]()
    for pair in combinations(engines, 2):
        one = compare_engines(*pair)
        sound |= set(map(str, pair)) if one.found.agrees else set()
        yield one
    prompt = int(drawn.per_sample((~drawn.mask).long()).min())
    for engine in (engine for engine in engines if str(engine) in sound):
        variants = (compare_engines(engine, variant) for variant in engine.list_variants(prompt))
        yield from (one for one in variants if not one.found.agrees)
