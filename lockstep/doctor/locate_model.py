"""`lockstep doctor locate`: finds the place where two engines disagree about a model, and proves it.

location.json   what was found, by pair; also in `report.json`, where a table lies there
repro/          by pair, a script that fails on the fault and passes where it is mended, with its inputs
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from lockstep.batch import Batch
from lockstep.config.loading import Loaded
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.base import TORCH_TYPES
from lockstep.doctor.locate_estimate import LocateEstimate, estimate_locate, free_bytes
from lockstep.doctor.options import DoctorRecipe, ranks_of
from lockstep.doctor.plan import Cell, requests_for
from lockstep.doctor.prompts import PromptSource
from lockstep.doctor.render import write_page
from lockstep.doctor.session import choose_results
from lockstep.errors import InputError
from lockstep.models.device import resolve_device
from lockstep.models.folder import context_of, read_config
from lockstep.report.doctor_folder import REPORT
from lockstep.report.progress import Progress, show_progress
from lockstep.units import readable
from lockstep.whole_files import write_whole
from lockstep_doctor.engines import EngineOptions, find_engine
from lockstep_doctor.examine import Pair, PairExamination, examine
from lockstep_doctor.findings import describe_examination, tree_of
from lockstep_doctor.modules import ModuleTap
from lockstep_doctor.reproduction import Reproducible, write_engine_reproduction, write_reproduction
from lockstep_doctor.tap import Tap
from lockstep_doctor.witness import open_witnesses

LOCATION, REPRODUCTION = "location.json", "repro"
_LONGEST, _REQUESTS = 100, 8
_TYPES = TORCH_TYPES | {"fp64": torch.float64}
_LEARNERS, _SAMPLERS, _NEIGHBORS = ("torch", "megatron"), {"torch": "torch_sampler"}, 2
_REFERENCE = "hf"
"""Engine whose program in float64 says who is wrong."""


def locate_model(loaded: Loaded) -> list[PairExamination]:
    """Examines every pair, prints what was found, leaves it in the folder of the results, and returns it.

    Raises:
        ValueError: If the model, its prompts or an engine cannot be used.
    """
    recipe = loaded.expect(DoctorRecipe)
    results = choose_results(loaded)
    with results.open() as started, show_progress(f"{recipe.model.path} → {results.folder}") as shown:
        estimate = _require_memory(recipe, shown)
        with shown.phase("draw requests"):
            drawn = draw_requests(recipe, PromptSource(recipe))
        started()
        computed = EngineChoice.of(recipe, _REFERENCE).options
        witnesses = open_witnesses(Path(recipe.model.path), computed.device, torch.float64, computed.dtype)
        found: list[tuple[PairExamination, Path | None]] = []
        for names in combinations(recipe.backends, 2):
            with shown.phase(" vs ".join(names)):
                pair = _PairExaminer(drawn, witnesses, results.folder / REPRODUCTION / "-".join(names), shown, estimate)
                found.append(pair.examine(*(EngineChoice.of(recipe, name) for name in names)))
    trees = [tree_of(one) | {"reproduction": script and str(script)} for one, script in found]
    write_whole(results.folder / LOCATION, [json.dumps(trees, indent=1).encode(), b"\n"])
    _into_report(results.folder, trees)
    for one, script in found:
        print("\n".join(describe_examination(one)))
        print(f"  reproduction: {script}\n" if script else "")
    print(f"read: {len(drawn)} sequences of at most {int(drawn.lengths.max())} tokens")
    print(f"location: {results.folder / LOCATION}")
    return [one for one, _ in found]


def _require_memory(recipe: DoctorRecipe, shown: Progress) -> LocateEstimate:
    """Says what the largest pair needs, and returns it; raises InputError if that is not free."""
    pairs = list(combinations([EngineChoice.of(recipe, name) for name in recipe.backends], 2))
    context = context_of(read_config(recipe.model.path))
    tokens = min(_choose_length(recipe) + recipe.data.max_prompt_tokens, context)
    estimates = [
        estimate_locate(
            recipe.model.path,
            [(choice.engine in _LEARNERS, choice.options.dtype) for choice in pair],
            tokens,
        )
        for pair in pairs
    ]
    largest = max(estimates, key=lambda one: one.total)
    shown.note(largest.sentence)
    largest.require(free_bytes(torch.device(pairs[0][0].options.device)))
    return largest


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
    backend = HFBackend(recipe.model.path, batch_size=_REQUESTS, device=recipe.learner.device)
    return backend.generate(requests, cell.sampling)


@dataclass(frozen=True)
class EngineChoice:
    """An engine, and how it is opened."""

    engine: str
    folder: Path
    options: EngineOptions

    @classmethod
    def of(cls, recipe: DoctorRecipe, name: str) -> EngineChoice:
        """The engine that a backend's name stands for, such as `torch-tp2`.

        Raises:
            InputError: No engine of that name can be looked into.
        """
        engine, _, rest = name.partition("-")
        if "fp8" in rest or rest == "te":
            raise InputError(f"locate cannot look into {name}; name {engine}")
        sizes = {key: size for key, size in ranks_of(name).model_dump().items() if size > 1}
        device = str(resolve_device(recipe.learner.device))
        settings = recipe.sampler.vllm.model_dump(exclude_defaults=True) if engine == "vllm" else {}
        options = EngineOptions(_TYPES[recipe.learner.dtype], device, sizes, settings=settings)
        return cls(engine, Path(recipe.model.path), options)

    def but(self, **options: Any) -> EngineChoice:
        """The same with other options."""
        return replace(self, options=replace(self.options, **options))

    def open(self) -> AbstractContextManager[Tap]:
        """Opens it for a block."""
        return find_engine(self.engine)(self.folder, self.options)

    def variants(self, prompt: int) -> Iterator[EngineChoice]:
        """Other ways in which the engine computes the same: beside other sequences, and by decoding."""
        if self.engine in _LEARNERS:
            yield self.but(neighbors=_NEIGHBORS)
        sampler = replace(self, engine=_SAMPLERS.get(self.engine, self.engine))
        if self.engine in (_REFERENCE, *_SAMPLERS) and not self.options.parallel:
            yield sampler.but(prompt=prompt)


@dataclass(frozen=True)
class _PairExaminer:
    """Common part of the examinations of a pair of engines.

    Attributes:
        drawn: The requests.
        witnesses: The model in float64, and in the type of the engines.
        folder: Of the scripts.
        estimate: Its memory.
    """

    drawn: Batch
    witnesses: Sequence[Tap]
    folder: Path
    shown: Progress
    estimate: LocateEstimate

    def examine(self, one: EngineChoice, other: EngineChoice) -> tuple[PairExamination, Path | None]:
        """Two engines beside each other; where they agree, each beside itself among other sequences, and decoding."""
        prompt = int(self.drawn.per_sample((~self.drawn.mask).long()).min())
        pairs = [(one, other), *((own, variant) for own in (one, other) for variant in own.variants(prompt))]
        outcomes: list[tuple[PairExamination, Path | None]] = []
        for pair in pairs:
            outcomes.append(self._examine(pair))
            if not outcomes[-1][0].agrees:
                return outcomes[-1]
        return outcomes[0]

    def _examine(self, pair: tuple[EngineChoice, EngineChoice]) -> tuple[PairExamination, Path | None]:
        """Two engines, and the script that shows what was found."""
        witness, rounded = self.witnesses
        requests = list(self.drawn.sequences())
        with ExitStack() as open_:
            reference, other = (open_.enter_context(choice.open()) for choice in pair)

            def note(phase: str) -> None:
                self.shown.note(f"{reference.name} vs {other.name}: {phase}")

            free, switches = free_bytes(torch.device(pair[0].options.device)), _switches(pair)
            if switches and 0 < free < self.estimate.again + self.estimate.values:
                note(f"other settings are not measured: {readable(free)} are free")
                switches = {}
            found = examine(reference, other, requests, witness, [rounded, rounded], switches, note)
            if not found.small.places:
                return found, None
            faulty = int(found.small.places[0].wrong != [reference.name])
            tap, choice = (reference, other)[faulty], pair[faulty]
            if isinstance(tap, ModuleTap) and tap.builder:
                return found, write_reproduction(self.folder, tap, found.small, found.smallest)
            if isinstance(tap, Reproducible):
                return found, tap.reproduce(self.folder, found.small, found.smallest)
            return found, write_engine_reproduction(
                self.folder, choice.engine, choice.folder, choice.options, found.small, found.smallest
            )


def _switches(pair: tuple[EngineChoice, EngineChoice]) -> dict[str, Pair]:
    """Other settings under which the gap is measured."""

    def open_under(**options: Any) -> Pair:
        @contextmanager
        def open_both() -> Iterator[tuple[Tap, Tap]]:
            with ExitStack() as open_:
                first, second = (open_.enter_context(choice.but(**options).open()) for choice in pair)
                yield first, second

        return open_both

    switches: dict[str, Pair] = {}
    if pair[0].options.dtype != torch.float32:
        switches["in fp32"] = open_under(dtype=torch.float32)
    if any(choice.options.parallel or choice.options.neighbors for choice in pair):
        switches["alone, in one process each"] = open_under(parallel={}, neighbors=0)
    if any(choice.options.prompt is not None for choice in pair):
        switches["by prefill"] = open_under(prompt=None)
    return switches


def _into_report(folder: Path, trees: Sequence[Mapping[str, Any]]) -> None:
    """Adds the pair with the largest gap to the table's report, where there is one, and draws its page anew."""
    path = folder / REPORT
    if not path.is_file():
        return
    report = json.loads(path.read_text(encoding="utf-8"))
    report["location"] = max(trees, key=lambda tree: tree["gap"])
    write_whole(path, [json.dumps(report, indent=1).encode(), b"\n"])
    write_page(folder)
