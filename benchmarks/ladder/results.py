"""The ladder's results: one line per run, kept by the digest of its recipe."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.ladder.rung import ASSETS, Rung
from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.roles import Load
from lockstep.config.loading import LoadedRecipe, load_run
from lockstep.report.log import read_metrics

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Key:
    """What a result is of.

    Attributes:
        arm: The arm's name.
        seed: The run's seed.
        recipe: Digest of the resolved recipe, its warm start's among it.
    """

    arm: str
    seed: int
    recipe: str


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        key: What it is of.
        steps: Steps at which the metric was measured.
        curve: The metric at these steps.
        end: The measure by which arms are compared.
        samples_per_step: Responses, or rows, of a step.
        cpu_s: CPU seconds of the run and its child processes, without its warm start.
        machine: The machine and the threads.
    """

    key: Key
    steps: tuple[int, ...]
    curve: tuple[float, ...]
    end: float
    samples_per_step: int
    cpu_s: float
    machine: str

    @property
    def mean(self) -> float:
        """Mean of the curve after its first point: higher for a run that is there earlier."""
        after = [value for step, value in zip(self.steps, self.curve, strict=True) if step] or list(
            self.curve
        )
        return sum(after) / len(after)

    def first_at(self, threshold: float) -> int | None:
        """Index of the first point at or above a threshold; None if there is none."""
        return next((index for index, value in enumerate(self.curve) if value >= threshold), None)


def read_results(name: str) -> list[Result]:
    """Reads all results of a rung, older ones first."""
    return (
        [_parse(line) for line in _file(name).read_text().splitlines()]
        if _file(name).exists()
        else []
    )


def add_result(name: str, result: Result) -> None:
    """Adds a result to a rung's file; an older one of the same arm and seed goes."""
    mine = (result.key.arm, result.key.seed)
    kept = [one for one in read_results(name) if (one.key.arm, one.key.seed) != mine]
    ordered = sorted([*kept, result], key=lambda one: (one.key.arm, one.key.seed))
    _file(name).parent.mkdir(exist_ok=True)
    _file(name).write_text("".join(json.dumps(asdict(one)) + "\n" for one in ordered))


def collect(rung: Rung, key: Key, folder: Path, cpu_s: float, machine: str) -> Result:
    """Reads the result of a finished run."""
    rows = [row for row in read_metrics(folder) if rung.metric in row]
    assert rows, f"{folder} has no {rung.metric}"
    steps = tuple(int(row["step"]) for row in rows)
    curve = tuple(row[rung.metric] for row in rows)
    end = (
        rung.measure(folder)
        if rung.measure
        else sum(curve[-rung.last :]) / len(curve[-rung.last :])
    )
    per_step = _samples_per_step(load_run(folder).expect_recipe(Algorithm).largest_step)
    return Result(key, steps, curve, end, per_step, cpu_s, machine)


def digest_recipe(loaded: LoadedRecipe) -> str:
    """Digest of the resolved recipe, whichever folder this machine has the assets in."""
    assets = os.environ.get(ASSETS, "")
    said = json.dumps(loaded.build_identity(), sort_keys=True)
    if not assets or assets not in said:
        return loaded.digest
    return hashlib.sha256(said.replace(assets, f"${ASSETS}").encode()).hexdigest()[:10]


def _samples_per_step(load: Load) -> int:
    """Responses of a step that samples, rows of one that does not."""
    return load.scored or load.rows * load.updates


def _file(name: str) -> Path:
    return RESULTS / f"{name}.jsonl"


def _parse(line: str) -> Result:
    row = json.loads(line)
    lists = {name: tuple(row[name]) for name in ("steps", "curve")}
    return Result(**{**row, **lists, "key": Key(**row["key"])})
