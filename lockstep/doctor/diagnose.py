"""`lockstep doctor diagnose`: looks for a disagreement of each pair of backends, and for its causes.

diagnosis.json   what each probe said, and the causes, by pair; also in `report.json`, where a table lies there
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from lockstep import exit_codes
from lockstep.algorithms.rows import files_of
from lockstep.config.loading import Loaded
from lockstep.doctor.backends.build import backends_of
from lockstep.doctor.base import Backend
from lockstep.doctor.causes import CAUSES
from lockstep.doctor.examine import Diagnosis, Looked, examine
from lockstep.doctor.options import DoctorRecipe
from lockstep.doctor.page import write_page
from lockstep.doctor.plan import Cell, requests_for
from lockstep.doctor.probes.layers import divergence
from lockstep.doctor.prompts import PromptSource
from lockstep.errors import InputError
from lockstep.inference.results import results_of
from lockstep.report.doctor_folder import REPORT
from lockstep.report.progress import Progress, show_progress
from lockstep.whole_files import write_whole

DIAGNOSIS = "diagnosis.json"
_LONGEST, _SEQUENCES = 100, 32


@dataclass(frozen=True)
class Examined:
    """One pair, and what was found about it.

    Attributes:
        train: Name of the training side.
        infer: Of the inference side.
        method: By which responses were drawn.
        diagnosis: What was found.
    """

    train: str
    infer: str
    method: str
    diagnosis: Diagnosis


def diagnose(loaded: Loaded) -> int:
    """Examines every pair, prints what was found, and leaves it in the folder of the results.

    Returns:
        The exit code.

    Raises:
        ValueError: If the model or its prompts cannot be used.
    """
    recipe = loaded.expect(DoctorRecipe)
    source = PromptSource(recipe)
    results = results_of(loaded, recipe.model.path, {"prompts": files_of(source.rows)}, "doctor", "a report on others")
    with results.open() as started, show_progress(f"{recipe.model.path} → {results.folder}") as shown:
        with shown.phase("start backends"), backends_of(recipe, shown) as backends:
            started()
            found = [_examined(recipe, source, pair, shown) for pair in combinations(backends.items(), 2)]
        trees = [_tree(one) for one in found]
        write_whole(results.folder / DIAGNOSIS, [json.dumps(trees, indent=1).encode(), b"\n"])
        _into_report(results.folder, trees)
    print("\n\n".join(_said(one) for one in found))
    print(f"\ndiagnosis: {results.folder / DIAGNOSIS}")
    healthy = not any(one.diagnosis.disagrees or one.diagnosis.causes for one in found)
    return exit_codes.OK if healthy else exit_codes.BROKEN


def _examined(
    recipe: DoctorRecipe, source: PromptSource, pair: tuple[tuple[str, Backend], tuple[str, Backend]], shown: Progress
) -> Examined:
    """By the first method under which the pair disagrees; where it never does, by the last."""
    (train_name, train), (infer_name, infer) = pair
    found = None
    for cell in _cells(recipe, min(train.context, infer.context), "shaped" in train.capabilities):
        requests = requests_for(cell, source.prompts(cell.data, infer.context - cell.length), _SEQUENCES, recipe.seed)

        def heard(looked: Looked, cell: Cell = cell) -> None:
            shown.note(f"{train_name} vs {infer_name}, {cell.method.name}: {looked.name}: {looked.said}")

        with shown.phase(f"{train_name} vs {infer_name}, {cell.method.name}"):
            diagnosis = examine(train, infer, recipe.model.path, requests, cell.sampling, heard)
        found = Examined(train_name, infer_name, cell.method.name, diagnosis)
        if diagnosis.disagrees or diagnosis.causes:
            break
    if found is None:
        raise InputError(f"{train_name} scores at temperature 1 only; add the methods greedy or T=1 to grid.methods")
    return found


def _cells(recipe: DoctorRecipe, context: int, shaped: bool) -> Iterator[Cell]:
    """The methods of the grid; those that leave the distribution as it is come first.

    Where the training side cannot score under another distribution, there are no more than those.
    """
    length = min(*recipe.grid.lengths, _LONGEST, context // 2)
    cells = [Cell(length, recipe.grid.data[0], method, max(recipe.grid.batch_sizes)) for method in recipe.grid.methods]
    told = [cell for cell in cells if shaped or cell.sampling.unshaped]
    return iter(sorted(told, key=lambda cell: (cell.greedy, not cell.sampling.unshaped)))


def _tree(one: Examined) -> dict[str, Any]:
    """As JSON; `report.doctor_folder` says what it holds."""
    found = one.diagnosis
    return {
        "pair": [one.train, one.infer],
        "method": one.method,
        "gap": found.gap,
        "floor": found.floor,
        "left": found.left,
        "explained": found.explained,
        "causes": [{**asdict(named), "what": CAUSES[named.cause].what, "cure": named.cure} for named in found.causes],
        "log": [asdict(looked) for looked in found.log],
        "layers": {local.node: local.error for local in divergence(found.case)},
    }


def _into_report(folder: Path, trees: list[dict[str, Any]]) -> None:
    """Adds the worst of the pairs to the table's report, where there is one, and draws its page anew."""
    path = folder / REPORT
    if not path.is_file():
        return
    report = json.loads(path.read_text(encoding="utf-8"))
    report["diagnosis"] = max(trees, key=lambda tree: tree["gap"] / max(tree["floor"], 1e-12))
    write_whole(path, [json.dumps(report, indent=1).encode(), b"\n"])
    write_page(folder)


def _said(one: Examined) -> str:
    """What was found about a pair, for people."""
    found = one.diagnosis
    head = (
        f"{one.train} vs {one.infer} ({one.method}): the two sides differ by {found.gap:.2g} nats (root mean square); "
        f"rounding alone makes {found.floor:.2g}"
    )
    if not found.disagrees and not found.causes:
        return f"{head}. They differ by no more than rounding in these types makes."
    lines = [head + "."]
    for named in found.causes:
        where = f" in {named.side}" if named.side else ""
        lines += [f"  {named.cause}{where} ({named.confidence}, {named.share:.0%} of it): {CAUSES[named.cause].what}"]
        lines += [f"    {evidence}" for evidence in named.evidence]
        lines += [f"    tried: {named.counter}"] if named.counter else []
        lines += [f"    do: {named.cure}"]
    if not found.explained:
        lines += [f"  unexplained: {found.left:.2g} nats are left"]
    return "\n".join(lines)
