"""Common part of commands that measure with backends: a results folder, progress, and the
backends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lockstep.algorithms.rows import group_files
from lockstep.config.loading import LoadedRecipe
from lockstep.inference.results import ResultsFolder, choose_results_folder
from lockstep.models.folder import read_config
from lockstep.report.progress import RunProgress, show_progress
from lockstep_doctor.backends.build import backends_of
from lockstep_doctor.table.base import Backend
from lockstep_doctor.table.options import DoctorRecipe
from lockstep_doctor.table.plan import PromptSource


def choose_results(loaded: LoadedRecipe) -> ResultsFolder:
    """Returns the results folder of a recipe.

    Raises:
        ValueError: The model or its prompts cannot be used, or the folder holds a different report.
    """
    recipe = loaded.expect_recipe(DoctorRecipe)
    read_config(recipe.model.path)  # checks the model folder before the results folder is created
    rows = {"prompts": group_files(PromptSource(recipe).prompt_files)}
    return choose_results_folder(
        loaded, recipe.model.path, rows, "doctor", "a report on something else"
    )


@contextmanager
def open_session(
    loaded: LoadedRecipe,
) -> Iterator[tuple[ResultsFolder, dict[str, Backend], RunProgress]]:
    """Creates the results folder and starts the backends while progress is shown; raises as
    `choose_results`.
    """
    recipe = loaded.expect_recipe(DoctorRecipe)
    results = choose_results(loaded)
    with (
        results.open_locked() as started,
        show_progress(f"{recipe.model.path} → {results.folder}") as shown,
        ExitStack() as open_,
    ):
        with shown.phase("start backends"):
            backends = open_.enter_context(backends_of(recipe, shown))
        started()
        yield results, backends, shown
