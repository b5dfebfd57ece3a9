"""`lockstep doctor locate`: finds the place where two engines disagree about a model, and proves it.

location.json   what was found, by pair; also in `report.json`, where a table lies there
repro/          by pair, a script that fails on the fault and passes where it is mended, with its inputs
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep import exit_codes
from lockstep.algorithms.rows import files_of
from lockstep.config.loading import Loaded
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.variants import TORCH_TYPES
from lockstep.doctor.options import DoctorRecipe, ranks_of
from lockstep.doctor.page import write_page
from lockstep.doctor.plan import Cell, requests_for
from lockstep.doctor.prompts import PromptSource
from lockstep.errors import InputError
from lockstep.inference.results import results_of
from lockstep.models.device import resolve_device
from lockstep.models.folder import context_of, read_config
from lockstep.report.doctor_folder import REPORT
from lockstep.report.progress import Progress, show_progress
from lockstep.whole_files import write_whole
from lockstep_doctor.engines import EngineOptions, find_engine
from lockstep_doctor.examine import Examination, Pair, examine
from lockstep_doctor.findings import describe_examination, tree_of
from lockstep_doctor.reproduction import write_reproduction
from lockstep_doctor.tap import Tap

LOCATION, REPRODUCTION = "location.json", "repro"
_LONGEST, _REQUESTS = 100, 8
_TYPES = TORCH_TYPES | {"fp64": torch.float64}
_REFERENCE = "hf"
"""Engine whose program in float64 says who is wrong."""


def locate_model(loaded: Loaded) -> int:
    """Examines every pair, prints what was found, and leaves it in the folder of the results.

    Returns:
        The exit code.

    Raises:
        ValueError: If the model, its prompts or an engine cannot be used.
    """
    recipe = loaded.expect(DoctorRecipe)
    source = PromptSource(recipe)
    results = results_of(loaded, recipe.model.path, {"prompts": files_of(source.rows)}, "doctor", "a report on others")
    with results.open() as started, show_progress(f"{recipe.model.path} → {results.folder}") as shown:
        with shown.phase("draw requests"):
            requests = draw_requests(recipe, source)
        started()
        found: list[tuple[Examination, Path | None]] = []
        for names in combinations(recipe.backends, 2):
            with shown.phase(" vs ".join(names)):
                found.append(_examined(recipe, names, requests, results.folder, shown))
    trees = [tree_of(one) | {"reproduction": script and str(script)} for one, script in found]
    write_whole(results.folder / LOCATION, [json.dumps(trees, indent=1).encode(), b"\n"])
    _into_report(results.folder, trees)
    for one, script in found:
        print("\n".join(describe_examination(one)))
        print(f"  reproduction: {script}\n" if script else "")
    print(f"location: {results.folder / LOCATION}")
    return exit_codes.OK if all(one.agrees for one, _ in found) else exit_codes.BROKEN


def draw_requests(recipe: DoctorRecipe, source: PromptSource) -> list[Tensor]:
    """Draws responses to the prompts of the table by plain `transformers`; returns the ids of each, prompt first."""
    context = context_of(read_config(recipe.model.path))
    length = min(*recipe.grid.lengths, _LONGEST, context // 2)
    method = min(recipe.grid.methods, key=lambda one: (one.temperature == 0, one.name != "T=1"))
    cell = Cell(length, recipe.grid.data[0], method, _REQUESTS)
    requests = requests_for(cell, source.prompts(cell.data, context - length), _REQUESTS, recipe.seed)
    return list(HFBackend(recipe.model.path, batch_size=_REQUESTS).generate(requests, cell.sampling).sequences())


def _examined(
    recipe: DoctorRecipe, names: tuple[str, str], requests: Sequence[Tensor], folder: Path, shown: Progress
) -> tuple[Examination, Path | None]:
    """One pair, and the script that shows what was found."""
    with ExitStack() as open_:
        dtype = recipe.learner.dtype
        reference, other = (open_.enter_context(open_engine(recipe, name, dtype)) for name in names)
        witness = open_.enter_context(open_engine(recipe, _REFERENCE, "fp64"))
        rounded = open_.enter_context(open_engine(recipe, _REFERENCE, dtype))
        found = examine(
            reference, other, requests, witness, [rounded, rounded], _switches(recipe, names), shown.note
        )
        if not found.small.places:
            return found, None
        faulty = reference if found.small.places[0].wrong == [reference.name] else other
        at = folder / REPRODUCTION / "-".join(names)
        return found, write_reproduction(at, faulty, found.small, found.smallest)


@contextmanager
def open_engine(recipe: DoctorRecipe, name: str, dtype: str, alone: bool = False) -> Iterator[Tap]:
    """Opens an engine by a backend's name, such as `torch-tp2`; `alone`: in one process, whatever the name says.

    Raises:
        InputError: No engine of that name can be looked into.
    """
    engine, _, rest = name.partition("-")
    if "fp8" in rest or rest == "te":
        raise InputError(f"locate cannot look into {name}; name {engine}, or a layout of it")
    sizes = {} if alone else {key: size for key, size in ranks_of(name).model_dump().items() if size > 1}
    options = EngineOptions(_TYPES[dtype], str(resolve_device(recipe.learner.device)), sizes)
    with find_engine(engine)(Path(recipe.model.path), options) as tap:
        yield tap


def _switches(recipe: DoctorRecipe, names: tuple[str, str]) -> dict[str, Pair]:
    """Other settings under which the gap is measured."""

    def opened(dtype: str, alone: bool) -> Callable[[], Any]:
        @contextmanager
        def pair() -> Iterator[tuple[Tap, Tap]]:
            with ExitStack() as open_:
                first, second = (open_.enter_context(open_engine(recipe, name, dtype, alone)) for name in names)
                yield first, second

        return pair

    dtype = recipe.learner.dtype
    switches: dict[str, Pair] = {} if dtype == "fp32" else {"in fp32": opened("fp32", False)}
    if any(ranks_of(name).ranks > 1 for name in names):
        switches["in one process each"] = opened(dtype, True)
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
