"""Four of the doctor's commands as functions: they print what the commands print, and return what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lockstep.api.values import build_tree
from lockstep.api.words import speak_python
from lockstep.config.loading import Loaded
from lockstep.config.recipe_files import Layer
from lockstep.doctor.doctor_recipe import doctor_recipe

if TYPE_CHECKING:
    from lockstep.api.options import DoctorOptions
    from lockstep.doctor.analyze_dump import DumpAnalysis
    from lockstep.doctor.refit_check import RefitStage
    from lockstep.doctor.report import TableResult
    from lockstep_doctor import PairExamination
    from lockstep_doctor.dumps import FieldNames


def table(model: str | Path, *, recipe: str = "doctor", **options: Unpack[DoctorOptions]) -> TableResult:
    """Measures agreement over a grid of lengths, data, methods and batch sizes; writes a folder in `doctor/`.

    Args:
        model: A Hugging Face folder, or the folder of a finished run.
        recipe: Options to begin with, such as `doctor_quick`.
        options: Those that `lockstep config doctor` lists. Sections are mappings, such as `grid={"lengths": [100]}`.

    Returns:
        The cells, with a verdict on each and on the whole table.

    Raises:
        RecipeError: One sentence for each option that is wrong.
    """
    from lockstep.doctor.measure_table import measure_and_report

    with speak_python():
        return measure_and_report(_load("table", model, recipe, options))


def locate(model: str | Path, *, recipe: str = "doctor", **options: Unpack[DoctorOptions]) -> list[PairExamination]:
    """Finds where backends diverge, proves it, and writes a script that fails there; arguments as `table`.

    Returns:
        One examination for each pair of backends.
    """
    from lockstep.doctor.locate_model import locate_model

    with speak_python():
        return locate_model(_load("locate", model, recipe, options))


def refit(
    model: str | Path, *, recipe: str = "doctor", **options: Unpack[DoctorOptions]
) -> dict[str, list[RefitStage]]:
    """Overwrites engines' weights with noise, refits them, and compares every tensor; arguments as `table`.

    Returns:
        The stages, by backend; a weight that is not the learner's is a finding of its stage.
    """
    from lockstep.doctor.refit_check import check_model

    with speak_python():
        return check_model(_load("refit", model, recipe, options))


def analyze(dump: str | Path, *, names: FieldNames | None = None, out: str | Path | None = None) -> DumpAnalysis:
    """Analyzes a dump of training and sampling log-probabilities, without a model.

    Args:
        dump: A file or folder that a training library wrote.
        names: Names of the dump's columns where they are not the known ones, such as `FieldNames(train="lp")`.
        out: A file for all figures, as JSON.

    Raises:
        DataError: The dump cannot be read, or has the log-probabilities of one side only.
    """
    from lockstep.doctor.analyze_dump import analyze_dump
    from lockstep_doctor.dumps import FieldNames

    return analyze_dump(Path(dump), names or FieldNames(), None if out is None else Path(out))


def _load(name: str, model: str | Path, recipe: str, options: Any) -> Loaded:
    said = Layer(f"lockstep.doctor.{name}", build_tree(options), in_yaml=False)
    return doctor_recipe(str(model), recipe=recipe, also=[said])
