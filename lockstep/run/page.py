"""The report of a run that has come to its end, written into its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockstep.command_line import command
from lockstep.disk import remove_dead_copies
from lockstep.report.summary import PAGE


def finish_page(folder: Path, note: Callable[[str], None]) -> None:
    """Completes the report of a finished run whose process was killed while it wrote it; see `write_page`."""
    if (folder / PAGE).is_file():
        remove_dead_copies(folder / PAGE)
    else:
        write_page(folder, note)


def write_page(folder: Path, note: Callable[[str], None]) -> None:
    """Writes the report; an error is only noted, since the run is finished and its model is there.

    Args:
        folder: Folder of the run.
        note: Shows the user a line that stays.
    """
    try:
        from lockstep.report.html import write_report  # here, so that what it needs can be missing, too

        write_report([folder], folder / PAGE)
    except Exception as error:
        note(f"the report was not written, but the run is whole: {error}; `{command('report', folder)}` tries again")
