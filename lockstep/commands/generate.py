"""`lockstep generate`: writes a model's responses to the rows of a file."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_asking
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    generate = parsers.add_parser(
        "generate", help="generate responses to the rows of a file; rerun the command to resume"
    )
    add_asking(generate, "rows to answer", "num_generations=4", "generate", "generations/")
    generate.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.inference.generate_recipe import generate_recipe

    loaded = generate_recipe(
        options.model, options.data, options.overrides, options.recipe, options.out
    )
    with spare_modules():
        from lockstep.inference.generate import generate

    generate(loaded)
    return 0
