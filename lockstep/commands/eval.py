"""`lockstep eval`: measures how often a model is right, or how well a judge matches people."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_asking
from lockstep.system.paths import model_argument
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    evaluate = parsers.add_parser(
        "eval", help="evaluate a model on the questions of a file; rerun the command to resume"
    )
    add_asking(
        evaluate,
        "questions and answers; ranked responses with --recipe eval_judge",
        "sampling.num_samples=4",
        "eval_gsm8k",
        "evals/",
        model_argument,
    )
    evaluate.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config import registry
    from lockstep.inference.eval_recipe import eval_recipe

    loaded = eval_recipe(
        options.model, options.data, options.overrides, options.recipe, options.out
    )
    with spare_modules():
        evaluate = registry.find_opener(type(loaded.recipe))
    evaluate(loaded)
    return 0
