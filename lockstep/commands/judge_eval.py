"""`lockstep judge-eval`: compares the verdicts of a judge with those of people."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import Parsers, add_asking
from lockstep.paths import model_argument
from lockstep.process_defaults import spare_modules


def add(parsers: Parsers) -> None:
    """Adds the command to a parser."""
    judge = parsers.add_parser("judge-eval", help="compare a judge with people; the same command again resumes")
    add_asking(judge, "ranked responses", "judge.num_evals_to_average=1", "judge_eval", "judge-evals/", model_argument)
    judge.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.inference.judge_eval_recipe import judge_eval_recipe

    loaded = judge_eval_recipe(options.model, options.data, options.overrides, options.recipe, options.out)
    with spare_modules():
        from lockstep.inference.judge_eval import judge_eval

    judge_eval(loaded)
    return 0
