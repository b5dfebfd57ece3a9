"""`lockstep train`: runs a recipe, or checks it before the first step with `--dry-run`."""

from __future__ import annotations

import argparse
import sys

from lockstep.commands.arguments import SubParsers, add_recipe
from lockstep.system.printable import print_text
from lockstep.system.process_defaults import spare_modules
from lockstep.system.unread import wrap_stream


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    train = parsers.add_parser("train", help="train with a recipe; rerun the command to resume")
    add_recipe(train, "options of the recipe, such as seed=1")
    train.add_argument("--dry-run", action="store_true", help="check the run without starting it")
    train.add_argument(
        "--allow-changes",
        action="store_true",
        help="resume even if recipe, data, model or code changed",
    )
    train.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config.loading import load_recipe

    if options.dry_run:
        with spare_modules():
            from lockstep.run.dry_run.dry_run import dry_run
        print_text(dry_run(load_recipe(options.recipe, options.overrides), options.allow_changes))
        return 0
    sys.stdout = wrap_stream(sys.stdout)  # a run must survive failing output
    with spare_modules():
        from lockstep.run.train import judge_finished, train_recipe
    return judge_finished(
        train_recipe(load_recipe(options.recipe, options.overrides), options.allow_changes)
    )
