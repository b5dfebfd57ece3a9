"""`lockstep doctor`: measures if training and inference agree on a model, and finds where not."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lockstep import exit_codes
from lockstep.commands.arguments import Parsers, add_trust
from lockstep.errors import InputError
from lockstep.paths import path_argument, source_argument
from lockstep.process_defaults import spare_modules

if TYPE_CHECKING:
    from lockstep.config.loading import Loaded
    from lockstep_doctor.dumps import FieldNames

_CODES = "Exit codes: 0 pass, 2 could not start (wrong usage too), 3 inconclusive, 4 fail."

_COLUMNS = {
    "train": "log-probabilities of the training side",
    "infer": "log-probabilities of the inference side",
    "ids": "token ids",
    "mask": "which tokens count",
    "attention": "which ids are no padding",
    "prompt-length": "tokens of the prompt",
    "temperature": "temperature of sampling",
    "top-p": "top_p of sampling",
    "version": "the version of the weights",
    "prompt": "the prompt that a sequence answers",
}
"""Contents of the columns of a dump, by the options that name them."""

Answer = Callable[[argparse.Namespace], int]


def add(parsers: Parsers) -> None:
    """Adds `doctor` and its questions to a parser."""
    doctor = parsers.add_parser(
        "doctor", help="do training and inference agree on a model, and if not, where", epilog=_CODES
    )
    doctor.set_defaults(command=run)
    group = doctor.add_subparsers(required=True, metavar="WHAT")
    what = "measure agreement over a grid of lengths, data, methods and batch sizes"
    _add_budget(_add_measuring(group, "table", what, _table, "doctor_table"))
    what = "the same over a small grid; where it fails, say where"
    _add_budget(_add_measuring(group, "quick", what, _quick, "doctor_quick"))
    _add_locate(group)
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


def _add_measuring(
    group: Parsers, name: str, what: str, answer: Answer, recipe: str = "doctor"
) -> argparse.ArgumentParser:
    parser = _add_question(group, name, what, answer)
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=source_argument,
        help="a Hugging Face folder, hf:owner/name, or the folder of a finished run",
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="such as backends=[hf,vllm]")
    parser.add_argument("--recipe", default=recipe, help=f"options to begin with (default: {recipe})")
    parser.add_argument(
        "--out", metavar="FOLDER", type=path_argument, help="where the results go; without it a folder in doctor/"
    )
    add_trust(parser)
    parser.set_defaults(budget=None)
    return parser


def _add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget", metavar="SECONDS", type=float, help="begin no cell of the grid after so long (grid.budget_s)"
    )


def _add_locate(group: Parsers) -> None:
    parser = _add_measuring(group, "locate", "find the place of a disagreement, and prove it", _locate_model)
    parser.set_defaults(answer=partial(_locate, parser))
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--model", metavar="FOLDER", dest="folder", type=source_argument, help="then MODEL is a dump that it generated"
    )
    which.add_argument("--url", help="compare the folder MODEL with a server, such as http://localhost:8000")
    parser.add_argument("--served-model", metavar="NAME", help="of MODEL on that server (default: the first it lists)")
    parser.add_argument("--key-env", metavar="VARIABLE", help="environment variable that holds the server's key")
    _add_columns(parser)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    columns = parser.add_argument_group("names of a dump's columns")
    for column, what in _COLUMNS.items():
        columns.add_argument(f"--{column}-column", metavar="NAME", help=what)


def _add_analyze(group: Parsers) -> None:
    parser = _add_question(group, "analyze", "read what a dump of log-probabilities says, without a model", _analyze)
    parser.add_argument(
        "file",
        metavar="FILE",
        type=path_argument,
        help="rollouts of NeMo RL, verl, TRL, slime, prime-rl, SkyRL or your own",
    )
    _add_columns(parser)
    parser.add_argument("--out", metavar="FILE", type=path_argument, help="write all figures as JSON")


def _add_selftest(group: Parsers) -> None:
    parser = _add_question(
        group, "selftest", "put faults into copies of small models, and count which ones are located", _selftest
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and requests (default: 0)")


def _load(options: argparse.Namespace) -> Loaded:
    from lockstep.doctor.doctor_recipe import doctor_recipe

    return doctor_recipe(options.model, options.overrides, options.recipe, options.out, options.budget)


def _measure(options: argparse.Namespace) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.measure_table import measure_and_report
        from lockstep.doctor.verdict import EXIT_CODES

    return EXIT_CODES[measure_and_report(loaded).verdict]


def _table(options: argparse.Namespace) -> int:
    code = _measure(options)
    if code == exit_codes.BROKEN:
        named = [] if options.recipe == "doctor_table" else ["--recipe", options.recipe]
        named += ["--trust", *options.trust] if options.trust else []
        print(f"where: lockstep doctor locate {shlex.join([options.model, *options.overrides, *named])}")
    return code


def _quick(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    code = _measure(options)
    if code == exit_codes.BROKEN:
        try:
            _locate_model(options, begun)
        except InputError as error:  # the verdict stands
            print(f"the place was not looked for: {error}")
    return code


def _locate(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    columns = [f"{name.replace('-', '_')}_column" for name in _COLUMNS]
    of_server = ["served_model", "key_env"]
    if options.folder is not None:
        _refuse_unread(parser, options, "--model", ["overrides", "recipe", "out", "trust", *of_server])
    elif options.url is not None:
        _refuse_unread(parser, options, "--url", ["out", *columns])
    else:
        _refuse_unread(parser, options, "a model", [*columns, *of_server])
        return _locate_model(options)
    with spare_modules():
        from lockstep.doctor.locate_dump import locate_file, locate_server

    if options.folder is not None:
        return locate_file(options.model, options.folder, _names(options))
    return locate_server(_load(options), options.url, options.served_model, options.key_env)


def _refuse_unread(
    parser: argparse.ArgumentParser, options: argparse.Namespace, what: str, unread: Sequence[str]
) -> None:
    for name in unread:
        if vars(options)[name] != parser.get_default(name):
            said = "key=value" if name == "overrides" else f"--{name.replace('_', '-')}"
            parser.error(f"locate with {what} does not read {said}; leave it out")


def _locate_model(options: argparse.Namespace, begun: float | None = None) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.locate_model import locate_model

    found = locate_model(loaded, begun)
    if not all(one.agrees for one in found):
        return exit_codes.BROKEN
    return exit_codes.INCONCLUSIVE if any(one.left_out for one in found) else exit_codes.OK


def _bringup(options: argparse.Namespace) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.bringup import bring_up

    return bring_up(loaded)


def _refit(options: argparse.Namespace) -> int:
    loaded = _load(options)
    with spare_modules():
        from lockstep.doctor.refit_check import check_model

    found = check_model(loaded)
    return exit_codes.BROKEN if any(stage.findings for stages in found.values() for stage in stages) else exit_codes.OK


def _analyze(options: argparse.Namespace) -> int:
    from pathlib import Path

    from lockstep.doctor.analyze_dump import analyze_dump
    from lockstep.doctor.verdict import EXIT_CODES

    out = None if options.out is None else Path(options.out)
    return EXIT_CODES[analyze_dump(Path(options.file), _names(options), out).judgement.verdict]


def _names(options: argparse.Namespace) -> FieldNames:
    from dataclasses import fields

    from lockstep_doctor.dumps import FieldNames

    return FieldNames(**{field.name: vars(options)[f"{field.name}_column"] for field in fields(FieldNames)})


def _selftest(options: argparse.Namespace) -> int:
    with spare_modules():
        from lockstep.doctor.selftest import selftest

    return selftest(options.seed)
