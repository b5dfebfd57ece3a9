"""What the doctor has said of a model: its reports in `doctor/` of the working directory, found by the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from lockstep.recipe import PPORecipe
from lockstep.runtime.identity import digest

REPORTS = Path("doctor")
"""Each examination has a folder of its own in here, with a `report.json`."""


class _Model(BaseModel):
    digest: str


class Report(BaseModel):
    """What is read of a `report.json`; it says more."""

    version: Literal[1] = Field(alias="schema")
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    model: _Model
    backends: tuple[str, ...]


@dataclass(frozen=True)
class Examination:
    """What is known of a model and a sampler.

    Attributes:
        passed: Whether the newest report that speaks of both says so.
        sentence: For people.
    """

    passed: bool
    sentence: str


def weights_digest(folder: Path) -> str:
    """Names a model by its weights: sixteen hexadecimal digits of the SHA-256 of its safetensors files."""
    return digest(sorted(folder.glob("*.safetensors")))


def examination(recipe: PPORecipe) -> Examination | None:
    """The newest report on the model that a run begins with; None where the model is made by the run itself.

    Raises:
        ValueError: If `run.require_doctor` asks for a report that passed, and there is none.
    """
    if recipe.model.path is None:
        return None
    found = examined(Path(recipe.model.path), recipe.sampler.backend)
    if recipe.run.require_doctor and not found.passed:
        raise ValueError(f"run.require_doctor: {found.sentence}")
    return found


def examined(folder: Path, sampler: str) -> Examination:
    """Looks for the newest report on the weights in `folder` that has `sampler` among its backends."""
    backends = "" if sampler == "torch" else f" 'backends=[torch, {sampler}]'"
    command = f"`lockstep doctor table {folder}{backends}`"
    reports = [(path, report) for path in _newest_first() if (report := _read(path)) and sampler in report.backends]
    weights = weights_digest(folder) if reports else ""  # reads them all, which takes a while
    for path, report in reports:
        if report.model.digest != weights:
            continue
        if report.verdict == "PASS":
            return Examination(True, f"the doctor has passed this model with sampler {sampler}: {path}")
        return Examination(
            False,
            f"the doctor's newest report on {folder} with sampler {sampler}, {path}, says {report.verdict}; mend what "
            f"it names, and run {command} again",
        )
    return Examination(
        False, f"there is no doctor's report on {folder} with sampler {sampler} in {REPORTS}/; {command} makes one"
    )


def _newest_first() -> list[Path]:
    return sorted(REPORTS.glob("*/report.json"), key=lambda path: (path.stat().st_mtime_ns, path), reverse=True)


def _read(path: Path) -> Report | None:
    """A report; None for one that is being written, or that another version wrote."""
    try:
        return Report.model_validate_json(path.read_bytes())
    except ValidationError:
        return None
