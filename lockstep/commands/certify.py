"""`lockstep certify`: how exactly sampler and learner agree on a model, on this machine."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_model, add_out, add_trust
from lockstep.core.errors import InputError
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    certify = parsers.add_parser(
        "certify",
        help="certify that sampler and learner agree bitwise on a model on this machine",
        epilog=(
            "Exit codes: 0 exact, 2 could not start, 3 negative control not detected, 4 not exact."
        ),
    )
    add_model(certify)
    certify.add_argument(
        "--count",
        metavar="N",
        type=int,
        default=32,
        help=("number of random-token prompts (default: 32)"),
    )
    certify.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        default=32,
        help=("maximum tokens per response (default: 32)"),
    )
    certify.add_argument(
        "--layouts",
        metavar="LAYOUT",
        nargs="+",
        default=[],
        help="learners over ranks that score the samples, too, such as dp=2 or dp=2,tp=2",
    )
    add_out(certify, "FILE", "certificate file (default: certificates/<model>.json)")
    add_trust(certify)
    certify.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    if options.count < 1 or options.max_tokens < 1:
        raise InputError("--count and --max-tokens must be at least 1")
    out = None if options.out is None else Path(options.out)
    if out is not None and out.is_dir():
        raise InputError(f"--out {out} is a folder; give a file path")
    with spare_modules():
        from lockstep.inference.certify import TrialSize, certify_model

    size = TrialSize(options.count, options.max_tokens, tuple(options.layouts))
    return certify_model(options.model, size, out)
