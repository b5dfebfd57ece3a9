"""`lockstep watch`: a live page with the report of runs in progress."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers
from lockstep.system.paths import path_argument


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    watch = parsers.add_parser("watch", help="serve a live report of runs on this machine")
    watch.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=path_argument,
        help="run folders, overlaid in one report; or one sweep folder",
    )
    watch.add_argument(
        "--port", type=int, default=0, metavar="PORT", help="port (default: a free port)"
    )
    watch.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    from lockstep.report.live import serve_runs

    serve_runs(list(map(Path, options.runs)), options.port)
    return 0
