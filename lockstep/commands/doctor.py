"""`lockstep doctor`: measures whether training and inference agree, and finds where they differ."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.commands.arguments import SubParsers, add_model, add_out, add_trust
from lockstep.core import exit_codes
from lockstep.core.errors import InputError
from lockstep.system.paths import path_argument, source_argument
from lockstep.system.process_defaults import spare_modules

if TYPE_CHECKING:
    from lockstep.config.loading import LoadedRecipe
    from lockstep_doctor.dumps.names import FieldNames

_CODES = "Exit codes: 0 pass, 2 could not start (wrong usage too), 3 inconclusive, 4 fail."

CommandHandler = Callable[[argparse.Namespace], int]


def add_command(parsers: SubParsers) -> None:
    """Adds `doctor` and its subcommands to a parser."""
    doctor = parsers.add_parser(
        "doctor",
        help="check whether training and inference agree on a model, and locate disagreements",
        epilog=_CODES,
    )
    doctor.set_defaults(command=run_command)
    group = doctor.add_subparsers(required=True, metavar="WHAT")
    what = "measure agreement over a grid of lengths, data, methods and batch sizes"
    _add_measuring(group, "table", what, _run_table, "doctor_table")
    what = "measure agreement over a small grid; on failure, locate the disagreement"
    _add_measuring(group, "quick", what, _run_quick, "doctor_quick")
    parser = _add_measuring(group, "locate", "locate a disagreement and prove it", _locate_model)
    parser.set_defaults(answer=partial(_run_locate, parser))
    parser.add_argument(
        "--model",
        metavar="FOLDER",
        dest="folder",
        type=source_argument,
        help="model that generated the dump given as MODEL",
    )
    _add_columns(parser)
    _add_measuring(
        group,
        "refit",
        "overwrite an engine's weights with noise, refit, and compare every tensor",
        _run_refit,
    )
    _add_measuring(
        group,
        "bringup",
        "check a new model for issues that grids miss: limits, embeddings, experts",
        _run_bringup,
    )
    what = "analyze a dump of log-probabilities without a model"
    parser = _add_question(group, "analyze", what, _run_analyze)
    parser.add_argument(
        "file",
        metavar="FILE",
        type=path_argument,
        help="rollouts of NeMo RL, verl, TRL, slime, prime-rl or your own",
    )
    _add_columns(parser)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    answer: CommandHandler = options.answer
    return answer(options)


def _add_question(
    group: SubParsers, name: str, what: str, answer: CommandHandler
) -> argparse.ArgumentParser:
    parser = group.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=_CODES
    )
    parser.set_defaults(answer=answer)
    return parser


def _add_measuring(
    group: SubParsers, name: str, what: str, answer: CommandHandler, recipe: str = "doctor"
) -> argparse.ArgumentParser:
    parser = _add_question(group, name, what, answer)
    add_model(parser)
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="such as backends=[hf,vllm]"
    )
    parser.add_argument("--recipe", default=recipe, help=f"base recipe (default: {recipe})")
    add_out(parser, "FOLDER", "results folder (default: a folder in doctor/)")
    add_trust(parser)
    return parser


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="ROLE=NAME",
        help=(
            "column names of a dump that is not from a known library: train, infer, ids, mask, "
            "attention, prompt_length, temperature, prompt"
        ),
    )


def _load_recipe(options: argparse.Namespace) -> LoadedRecipe:
    from lockstep_doctor.commands.recipe import doctor_recipe

    return doctor_recipe(options.model, options.overrides, options.recipe, options.out)


def _measure_agreement(options: argparse.Namespace) -> int:
    loaded = _load_recipe(options)
    with spare_modules():
        from lockstep_doctor.table.measure_table import measure_and_report
        from lockstep_doctor.table.verdict import EXIT_CODES

    return EXIT_CODES[measure_and_report(loaded).verdict]


def _run_table(options: argparse.Namespace) -> int:
    code = _measure_agreement(options)
    if code == exit_codes.BROKEN:
        if options.recipe == "doctor_table":
            named = []
        else:
            named = ["--recipe", options.recipe]
        named += ["--trust", *options.trust] if options.trust else []
        print(
            "where: lockstep doctor locate "
            f"{shlex.join([options.model, *options.overrides, *named])}"
        )
    return code


def _run_quick(options: argparse.Namespace) -> int:
    code = _measure_agreement(options)
    if code == exit_codes.BROKEN:
        try:
            _locate_model(options)
        except InputError as error:  # the verdict stands
            print(f"the location was not searched: {error}")
    return code


def _run_locate(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.folder is None:
        unread = ["columns"]
    else:
        unread = ["overrides", "recipe", "out", "trust"]
    what = "a model" if options.folder is None else "--model"
    for name in unread:
        if vars(options)[name] != parser.get_default(name):
            option = "key=value" if name == "overrides" else f"--{name}"
            parser.error(f"locate with {what} does not use {option}; remove it")
    if options.folder is None:
        return _locate_model(options)
    with spare_modules():
        from lockstep_doctor.commands.dump import locate_file

    return locate_file(options.model, options.folder, _parse_field_names(options))


def _locate_model(options: argparse.Namespace) -> int:
    loaded = _load_recipe(options)
    with spare_modules():
        from lockstep_doctor.commands.locate_model import locate_model

    if all(one.agrees for one in locate_model(loaded)):
        return exit_codes.OK
    return exit_codes.BROKEN


def _run_bringup(options: argparse.Namespace) -> int:
    loaded = _load_recipe(options)
    with spare_modules():
        from lockstep_doctor.commands.bringup import bring_up

    return bring_up(loaded)


def _run_refit(options: argparse.Namespace) -> int:
    loaded = _load_recipe(options)
    with spare_modules():
        from lockstep_doctor.commands.refit_check import check_model

    found = check_model(loaded)
    if any(stage.findings for stages in found.values() for stage in stages):
        return exit_codes.BROKEN
    return exit_codes.OK


def _run_analyze(options: argparse.Namespace) -> int:
    from lockstep_doctor.commands.dump import analyze_dump
    from lockstep_doctor.table.verdict import EXIT_CODES

    return EXIT_CODES[
        analyze_dump(Path(options.file), _parse_field_names(options)).judgment.verdict
    ]


def _parse_field_names(options: argparse.Namespace) -> FieldNames:
    from lockstep_doctor.dumps.names import FieldNames

    known = FieldNames.__dataclass_fields__
    names: dict[str, str] = {}
    for word in options.columns:
        role, _, name = word.partition("=")
        if role not in known or not name:
            raise InputError(f"--columns {role} is not ROLE=NAME; valid roles: {', '.join(known)}")
        names[role] = name
    return FieldNames(**names)
