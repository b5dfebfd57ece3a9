"""The table of `lockstep runs`: the state, the newest step and the score of each run."""

from __future__ import annotations

from os.path import getmtime
from pathlib import Path

from lockstep.core.errors import InputError
from lockstep.report.held_out import list_headlines
from lockstep.report.sweeps import SweepRun
from lockstep.report.terminal import summary_table


def tabulate_runs(folder: Path) -> str:
    """The runs in a folder, the newest last; the score is the first of a run's headlines.

    Raises:
        InputError: There are no runs.
    """
    recipes = sorted(folder.glob("*/recipe.yaml"), key=getmtime)
    if not recipes:
        raise InputError(f"no runs in {folder}; name the folder that has them")
    table = [["run", "state", "step", "score, first → last"]]
    for recipe in recipes:
        run = SweepRun(recipe.parent, {})
        try:
            step = "".join(f"{row['step']:.0f}" for row in run.rows[-1:])
            score = "".join(" ".join(line) for line in list_headlines(run.rows)[:1])
            table.append([str(run.folder), run.state, step, score])
        except ValueError as error:
            table.append([str(run.folder), "unreadable", "", str(error)])
    return summary_table(table)
