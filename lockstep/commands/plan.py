"""`lockstep plan`: prints the memory of a recipe, without a GPU or weights."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_recipe
from lockstep.core import exit_codes
from lockstep.system.paths import path_argument
from lockstep.system.printable import print_text
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    plan = parsers.add_parser("plan", help="estimate the memory of a recipe without running it")
    add_recipe(plan, "options of the recipe")
    plan.add_argument("--gpus", type=int, required=True, metavar="N", help="number of GPUs")
    plan.add_argument(
        "--memory", required=True, metavar="SIZE", help="memory per GPU, such as 80GB or 80GiB"
    )
    plan.add_argument(
        "--rates",
        metavar="FILE",
        type=path_argument,
        help="gpu_check.json of that GPU, to also estimate step time",
    )
    plan.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config.loading import load_recipe

    loaded = load_recipe(options.recipe, options.overrides)
    with spare_modules():
        from lockstep.plan.command import plan_recipe

    found = plan_recipe(loaded, options.gpus, options.memory, options.rates)
    print_text(found.text)
    if found.fits:
        return exit_codes.OK
    return exit_codes.BROKEN
