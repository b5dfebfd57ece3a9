"""The command line.

Nothing heavy is imported before a command needs it, so that --help is fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lockstep.commands import (
    certify,
    check,
    config,
    convert,
    doctor,
    export,
    generate,
    gpu_check,
    plan,
    report,
    runs,
    schema,
    serve,
    sweep,
    train,
    watch,
)
from lockstep.commands import eval as evaluate
from lockstep.config.trust import trust
from lockstep.core import exit_codes
from lockstep.run.stop import end_with_code, restore_interrupts
from lockstep.system import process_defaults
from lockstep.system.unread import is_unread, redirect_to_null, wrap_stream
from lockstep.version import __version__

COMMANDS = (
    train,
    sweep,
    plan,
    config,
    convert,
    evaluate,
    generate,
    serve,
    check,
    export,
    runs,
    report,
    watch,
    doctor,
    certify,
    gpu_check,
    schema,
)
"""The commands in the order of --help; each has `add_command` and `run_command`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command `lockstep`. Returns the exit code."""
    sys.stderr = wrap_stream(sys.stderr)
    try:
        try:
            return _run_command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not is_unread(sys.stdout):
            raise
        redirect_to_null(sys.stdout.fileno())
        return exit_codes.UNREAD


def _run_command(arguments: Sequence[str] | None) -> int:
    options = parse_arguments(arguments)
    process_defaults.stay_offline()
    process_defaults.keep_freed_memory()
    restore_interrupts()

    def call_command() -> int:
        trust(*(options.trust if "trust" in options else ()))
        code = options.command(options)
        sys.stdout.flush()  # here, where a failure still becomes a sentence
        return code

    return end_with_code(call_command, options.traceback)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; arguments that argparse does not recognize are overrides."""
    parser = build_parser()
    options, left = parser.parse_known_args(arguments)
    if "--traceback" in left:  # at any position
        left.remove("--traceback")
        options.traceback = True
    if left and "overrides" not in options:
        parser.error(f"there is no argument {left[0]!r} here")
    if left:
        options.overrides = [*options.overrides, *left]
    return options


def build_parser() -> argparse.ArgumentParser:
    """Builds the parser, with all commands."""
    parser = argparse.ArgumentParser(
        prog="lockstep",
        description=(
            "Post-trains language models; the policy that is trained and the one that "
            "samples stay in step."
        ),
        epilog="Start with: lockstep train ppo_quiz",
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(parsers)
    return parser
