"""`lockstep convert`: makes a recipe of another library's config, and says what became of each key."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lockstep.commands.arguments import Parsers
from lockstep.paths import path_argument

_LIBRARIES = ("nemo-rl", "verl", "trl", "openrlhf")
_ALGORITHMS = ("ppo", "grpo", "sft", "dpo", "kto", "orpo", "simpo", "online_dpo", "reward_model", "distill")


def add(parsers: Parsers) -> None:
    """Adds the command to a parser."""
    convert = parsers.add_parser("convert", help="make a recipe of a config of verl, NeMo RL, TRL or OpenRLHF")
    convert.add_argument(
        "file",
        metavar="FILE",
        type=path_argument,
        help="YAML, JSON, a shell script with the command, or a Python file with a configuration of TRL",
    )
    convert.add_argument(
        "--from",
        dest="library",
        choices=_LIBRARIES,
        help="whose it is; without it, that of the library which has most of its keys",
    )
    convert.add_argument("--algorithm", choices=_ALGORITHMS, help="what it trains, where the file does not say")
    convert.add_argument(
        "--out", metavar="RECIPE", type=path_argument, help="write the recipe there, and print the table"
    )
    convert.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config.foreign_recipe import convert_file, describe_changes, render, validate
    from lockstep.data.foreign_rows import fit_to_rows
    from lockstep.errors import InputError
    from lockstep.foreign.convert import list_lines
    from lockstep.whole_files import write_whole

    if options.out is not None and Path(options.out).exists():
        raise InputError(f"{options.out} is there already and would be lost; give --out another name, or move it")
    converted = fit_to_rows(convert_file(Path(options.file), options.library, options.algorithm))
    table = "\n".join(list_lines(converted))
    if options.out is None:
        print(render(converted), end="")
        print(table, file=sys.stderr)
    else:
        write_whole(Path(options.out), [render(converted).encode()])
        print(table)
    changes = describe_changes(converted, validate(converted))
    if changes:
        raise InputError(changes)
    return 0
