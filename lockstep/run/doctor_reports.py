"""The doctor's reports on a model, found by its weights in `doctor/` of the working directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from lockstep.algorithms.base import Algorithm
from lockstep.config import Computation
from lockstep.config.backends import INFERENCE
from lockstep.errors import InputError
from lockstep.models.digests import digest_weights

REPORTS = Path("doctor")
"""Folder of the reports; each examination has a subfolder with a `report.json`."""


class _ReportedModel(BaseModel):
    digest: str


class _Recipe(BaseModel):
    learner: Computation


class Report(BaseModel):
    """The fields that are read of a `report.json`; `lockstep.doctor.report` defines them all."""

    version: Literal["lockstep.doctor.table/1"] = Field(alias="schema")
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    model: _ReportedModel
    recipe: _Recipe
    backends: dict[str, Any]

    def covers(self, sampler: str, dtype: str) -> bool:
        """True if it compares this sampler with a torch learner, both in `dtype`."""
        return {"torch", sampler} <= self.backends.keys() and self.recipe.learner.dtype == dtype


@dataclass(frozen=True)
class Examination:
    """The doctor's verdict on a model and a sampler.

    Attributes:
        passed: True if the newest report on both says PASS.
        sentence: For people.
    """

    passed: bool
    sentence: str


def examination(recipe: Algorithm) -> Examination | None:
    """The newest report on the model that a run begins with; None where the run makes that model, or samples nothing.

    Raises:
        ValueError: If `run.require_doctor` asks for a report that passed, and there is none.
    """
    if recipe.model.path is None or recipe.inference is None:
        return None
    found = find_examination(Path(recipe.model.path), recipe.inference.sampler.backend, recipe.learner.dtype)
    if recipe.run.require_doctor and not found.passed:
        raise InputError(f"run.require_doctor: {found.sentence}")
    return found


def find_examination(folder: Path, sampler: str, dtype: str) -> Examination:
    """Looks for the newest report on the weights in `folder` that covers a sampler and a type."""
    about = f"{folder} with sampler {sampler} in {dtype}"
    backends = ",".join(INFERENCE.find(sampler).doctor_backends)
    command = f"`lockstep doctor table {folder} backends=[{backends}] learner.dtype={dtype}`"
    read = [(path, _read(path)) for path in _newest_first()]
    reports = [(path, report) for path, report in read if report is not None and report.covers(sampler, dtype)]
    weights = digest_weights(folder) if reports else ""
    newest = next(((path, report.verdict) for path, report in reports if report.model.digest == weights), None)
    if newest is None:
        return Examination(False, f"there is no doctor's report on {about} in {REPORTS}/; {command} makes one")
    path, verdict = newest
    if verdict == "PASS":
        return Examination(True, f"the doctor has passed {about}: {path}")
    sentence = (
        f"the doctor's newest report on {about} says {verdict}: {path}; mend what it names, and run {command} again"
    )
    return Examination(False, sentence)


def _newest_first() -> list[Path]:
    return sorted(REPORTS.glob("*/report.json"), key=lambda path: (path.stat().st_mtime_ns, path), reverse=True)


def _read(path: Path) -> Report | None:
    """A report; None for one that is being written, or that another version wrote."""
    try:
        return Report.model_validate_json(path.read_bytes())
    except ValidationError:
        return None
