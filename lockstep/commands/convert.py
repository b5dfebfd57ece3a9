"""`lockstep convert`: converts another library's config to a recipe, and reports on each key."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lockstep.commands.arguments import SubParsers, add_out

_ALGORITHMS = (
    "ppo",
    "grpo",
    "rloo",
    "sft",
    "dpo",
    "kto",
    "orpo",
    "simpo",
    "online_dpo",
    "reward_model",
    "distill",
)


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    convert = parsers.add_parser(
        "convert", help="convert a config of verl, NeMo RL, TRL or OpenRLHF to a recipe"
    )
    convert.add_argument(
        "config",
        metavar="FILE",
        nargs="+",
        help=(
            "YAML or JSON, or a file with one command; then their own key=value, or, after --, "
            "their --flags"
        ),
    )
    convert.add_argument(
        "--from",
        dest="library",
        help=(
            "nemo-aligner, nemo-rl, openrlhf, trl or verl (default: detected from the file's keys)"
        ),
    )
    convert.add_argument(
        "--algorithm", choices=_ALGORITHMS, help="algorithm, if the file does not specify it"
    )
    add_out(convert, "RECIPE", "write the recipe to this file and print the report")
    convert.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.core.errors import InputError

    try:
        from lockstep_convert.command import convert_words
    except ModuleNotFoundError:
        raise InputError(
            "the package lockstep_convert is not installed; install lockstep-rl"
        ) from None
    from lockstep.system.whole_files import write_whole

    if options.out is not None and Path(options.out).exists():
        raise InputError(f"{options.out} already exists; choose a different --out, or move it")
    recipe, report, problem = convert_words(options.config, options.library, options.algorithm)
    if options.out is None:
        print(recipe, end="")
        print(report, file=sys.stderr)
    else:
        write_whole(Path(options.out), [recipe.encode()])
        print(report)
    if problem:
        raise InputError(problem)
    return 0
