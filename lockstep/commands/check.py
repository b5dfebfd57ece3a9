"""`lockstep check`: compares a run's metrics with the acceptance bounds of its recipe."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_trust
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.system.paths import path_argument
from lockstep.system.printable import print_text


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    check = parsers.add_parser(
        "check", help="compare a run's metrics with its recipe's acceptance bounds"
    )
    check.add_argument("run", type=path_argument, help="folder of the run")
    add_trust(check)
    check.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    from lockstep.config.loading import load_run
    from lockstep.report.acceptance import check_bound
    from lockstep.report.log import read_metrics, require_run
    from lockstep.system.sums import require_unaltered

    require_run(Path(options.run))
    require_unaltered(Path(options.run))
    bounds = load_run(Path(options.run)).training_recipe.acceptance
    if not bounds:
        raise InputError(f"the recipe of {options.run} has no acceptance bounds to check")
    rows = read_metrics(Path(options.run))
    findings = [check_bound(bound, rows) for bound in bounds]
    for _, sentence in findings:
        print_text(sentence)
    if all(passed for passed, _ in findings):
        return exit_codes.OK
    return exit_codes.BROKEN
