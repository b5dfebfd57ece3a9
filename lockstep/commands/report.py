"""`lockstep report`: writes runs, or a sweep, as one HTML file."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_out
from lockstep.system.paths import path_argument
from lockstep.system.printable import print_note, print_text


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    report = parsers.add_parser(
        "report", help="write an HTML report of finished or unfinished runs"
    )
    report.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=path_argument,
        help="run folders, overlaid in one report; or one sweep folder",
    )
    add_out(
        report, "FILE", ("output file (default: report.html in the run, or here for several runs)")
    )
    report.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    from lockstep.report.html import write_report
    from lockstep.report.summary import PAGE
    from lockstep.system.sums import find_altered

    folders = list(map(Path, options.runs))
    out = Path(options.out or (folders[0] if len(folders) == 1 else Path()) / PAGE)
    for folder in folders:
        for sentence in find_altered(folder, ""):
            print_note(sentence)
    write_report(folders, out)
    print_text(f"{out}  {out.stat().st_size / 1e6:.1f} MB")
    return 0
