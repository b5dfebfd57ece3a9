"""`lockstep config`: lists shipped recipes, prints a recipe's options, or explains options."""

from __future__ import annotations

import argparse
import re

from lockstep.commands.arguments import SubParsers


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    config = parsers.add_parser(
        "config", help="print a resolved recipe and where each value comes from"
    )
    config.add_argument("recipe", nargs="?", help="if omitted, lists the shipped recipes")
    config.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value | key",
        help="a key without a value describes that option",
    )
    config.add_argument("--explain", action="store_true", help="describe every option instead")
    config.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config.help import explain_options, read_headline
    from lockstep.config.loading import describe_recipe, load_recipe
    from lockstep.config.recipe_files import find_shipped

    if options.recipe is None:
        for name, path in find_shipped().items():
            print(f"{name:<44} {read_headline(path.read_text(encoding='utf-8'))}")
        return 0
    keys: list[str] = []
    overrides: list[str] = []
    for word in options.overrides:
        if re.fullmatch(r"\w+(\.\w+)*", word):
            keys.append(word)
        else:
            overrides.append(word)
    loaded = load_recipe(options.recipe, overrides)
    print(
        explain_options(loaded, keys)
        if keys or options.explain
        else describe_recipe(loaded, origins=True),
        end="",
    )
    return 0
