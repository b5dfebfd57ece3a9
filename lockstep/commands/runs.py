"""`lockstep runs`: lists runs with their state and score."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers
from lockstep.system.paths import path_argument
from lockstep.system.printable import print_text


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    runs = parsers.add_parser("runs", help="list runs with their state and score")
    runs.add_argument(
        "folder",
        nargs="?",
        default="runs",
        metavar="FOLDER",
        type=path_argument,
        help="folder of the runs, such as a sweep (default: runs)",
    )
    runs.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    from lockstep.report.run_table import tabulate_runs

    print_text(tabulate_runs(Path(options.folder)))
    return 0
