"""`lockstep certify`: how exactly sampler and learner agree on a model, on this machine."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import Parsers, add_model, add_out, add_trust
from lockstep.core.errors import InputError
from lockstep.system.process_defaults import spare_modules


def add(parsers: Parsers) -> None:
    """Adds the command to a parser."""
    certify = parsers.add_parser(
        "certify",
        help="say how exactly sampler and learner agree on a model on this machine",
        epilog=(
            "Exit codes: 0 exact, 2 could not start, 3 the negative control was not seen, 4 "
            "not exact."
        ),
    )
    add_model(certify)
    certify.add_argument(
        "--count", metavar="N", type=int, default=32, help="prompts of random tokens (default: 32)"
    )
    certify.add_argument(
        "--max-tokens", metavar="N", type=int, default=32, help="longest response (default: 32)"
    )
    add_out(certify, "FILE", "the certificate; default: certificates/<model>.json")
    add_trust(certify)
    certify.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    if options.count < 1 or options.max_tokens < 1:
        raise InputError("--count and --max-tokens are at least 1")
    out = None if options.out is None else Path(options.out)
    if out is not None and out.is_dir():
        raise InputError(f"--out {out} is a folder; name the file")
    with spare_modules():
        from lockstep.inference.certify import Asked, certify

    return certify(options.model, Asked(options.count, options.max_tokens), out)
