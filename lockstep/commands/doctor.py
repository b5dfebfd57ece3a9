"""`lockstep doctor`: measures if training and inference agree on a model, and finds out why not."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep import exit_codes
from lockstep.commands.arguments import Parsers, add_trust
from lockstep.paths import path_argument
from lockstep.process_defaults import spare_modules

if TYPE_CHECKING:
    from lockstep.config.loading import Loaded

_CODES = "Exit codes: 0 pass, 2 could not start (wrong usage too), 3 inconclusive, 4 fail."

Answer = Callable[[argparse.Namespace], int]


def add(parsers: Parsers) -> None:
    """Adds `doctor` and its questions to a parser."""
    doctor = parsers.add_parser(
        "doctor", help="do training and inference agree on a model, and if not, why", epilog=_CODES
    )
    doctor.set_defaults(command=run)
    group = doctor.add_subparsers(required=True, metavar="WHAT")
    _add_measuring(group, "table", "measure agreement over a grid of lengths, data, methods and batch sizes", _table)
    _add_measuring(group, "quick", "the same over a small grid; where it fails, say why", _quick, "doctor_quick")
    _add_measuring(group, "diagnose", "find the causes of a disagreement, one by one", _diagnose)
    _add_measuring(group, "refit", "overwrite an engine's weights with noise, refit, and compare every tensor", _refit)
    _add_measuring(group, "bringup", "check what no grid shows of a new model: limits, embeddings, experts", _bringup)
    _add_analyze(group)
    _add_selftest(group)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    answer: Answer = options.answer
    return answer(options)


def _add_question(group: Parsers, name: str, what: str, answer: Answer) -> argparse.ArgumentParser:
    parser = group.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=_CODES)
    parser.set_defaults(answer=answer)
    return parser


def _add_measuring(group: Parsers, name: str, what: str, answer: Answer, recipe: str = "doctor") -> None:
    parser = _add_question(group, name, what, answer)
    parser.add_argument(
        "model", metavar="MODEL", type=path_argument, help="a Hugging Face folder, or the folder of a finished run"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as backends=[hf,vllm]")
    parser.add_argument("--recipe", default=recipe, help=f"options to begin with (default: {recipe})")
    parser.add_argument(
        "--out", metavar="FOLDER", type=path_argument, help="where the results go; without it a folder in doctor/"
    )
    parser.add_argument(
        "--budget", metavar="SECONDS", type=float, help="begin no cell of the grid after so long (grid.budget_s)"
    )
    add_trust(parser)


def _add_analyze(group: Parsers) -> None:
    parser = _add_question(group, "analyze", "read what a dump of log-probabilities says, without a model", _analyze)
    parser.add_argument(
        "file", metavar="FILE", type=path_argument, help="JSONL or Parquet, one sequence per row; usual names are found"
    )
    for column, what in (
        ("train", "log-probabilities of the training side"),
        ("infer", "log-probabilities of the inference side"),
        ("ids", "token ids"),
        ("mask", "which tokens count"),
        ("prompt-length", "tokens of the prompt"),
        ("temperature", "temperature of sampling"),
        ("top-p", "top_p of sampling"),
        ("version", "the version of the weights"),
        ("prompt", "the prompt that a sequence answers"),
    ):
        parser.add_argument(f"--{column}-column", metavar="NAME", help=f"name of the column with {what}")
    parser.add_argument("--out", metavar="FILE", type=path_argument, help="write all figures as JSON")


def _add_selftest(group: Parsers) -> None:
    parser = _add_question(
        group, "selftest", "inject faults into real backends, and count which ones are named", _selftest
    )
    add_selftest_options(parser)


def add_selftest_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a self-test, which the benchmark with all faults shares."""
    parser.add_argument(
        "model", metavar="MODEL", type=path_argument, nargs="?", help="stands for the small random Llama of the faults"
    )
    parser.add_argument("--sweep", action="store_true", help="look for the least magnitude of each fault that is named")
    parser.add_argument("--seed", type=int, default=0, help="of models and prompts (default: 0)")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=path_argument,
        help="where results go; the same command then resumes where it was",
    )


def _load(options: argparse.Namespace) -> Loaded:
    from lockstep.doctor.doctor_recipe import doctor_recipe

    return doctor_recipe(options.model, options.overrides, options.recipe, options.out, options.budget)


def _measure(options: argparse.Namespace) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.table import table

    return table(loaded)


def _table(options: argparse.Namespace) -> int:
    code = _measure(options)
    if code == exit_codes.BROKEN:
        print(f"why: lockstep doctor diagnose {shlex.join([options.model, *options.overrides])}")
    return code


def _quick(options: argparse.Namespace) -> int:
    code = _measure(options)
    if code == exit_codes.BROKEN:
        _diagnose(options)
    return code


def _diagnose(options: argparse.Namespace) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.diagnose import diagnose

    return diagnose(loaded)


def _bringup(options: argparse.Namespace) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.bringup import bringup

    return bringup(loaded)


def _refit(options: argparse.Namespace) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.refit_check import refit_check

    return refit_check(loaded)


def _analyze(options: argparse.Namespace) -> int:
    from dataclasses import fields
    from pathlib import Path

    from lockstep.doctor.analyze import analyze
    from lockstep.doctor.dump import Columns

    columns = Columns(**{field.name: getattr(options, f"{field.name}_column") for field in fields(Columns)})
    return analyze(Path(options.file), columns, None if options.out is None else Path(options.out))


def _selftest(options: argparse.Namespace) -> int:
    from pathlib import Path

    with spare_modules():
        from lockstep.doctor.selftest.run import selftest

    out = None if options.out is None else Path(options.out)
    return selftest(options.model, out, options.sweep, options.seed)
