"""`lockstep eval`: asks a model the questions of a file and says how many of its answers are right."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import Parsers, add_asking
from lockstep.process_defaults import spare_modules


def add(parsers: Parsers) -> None:
    """Adds the command to a parser."""
    evaluate = parsers.add_parser("eval", help="ask a model the questions of a file; the same command again resumes")
    add_asking(evaluate, "questions and answers", "sampling.num_samples=4", "eval_gsm8k", "evals/")
    evaluate.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.inference.eval_recipe import eval_recipe

    loaded = eval_recipe(options.model, options.data, options.overrides, options.recipe, options.out)
    with spare_modules():
        from lockstep.inference.evaluate import evaluate

    evaluate(loaded)
    return 0
