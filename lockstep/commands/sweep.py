"""`lockstep sweep`: runs a recipe with every combination of option values."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_recipe


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    sweep = parsers.add_parser(
        "sweep",
        help=("run a recipe with several option values; rerun the command to resume"),
    )
    add_recipe(sweep, "options, some with several values: seed=0..4 run.max_steps=10,20")
    sweep.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="number of runs at a time (default: 1)"
    )
    sweep.add_argument(
        "--name",
        help="folder in sweeps/ (default: the recipe's name and the swept options)",
    )
    sweep.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.sweeps.plan import plan_words
    from lockstep.sweeps.sweep import run_sweep

    return run_sweep(plan_words(options.recipe, options.overrides, options.name), options.jobs)
