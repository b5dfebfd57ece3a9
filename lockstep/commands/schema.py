"""`lockstep schema`: prints the JSON schema of recipe files, for completion in an editor."""

from __future__ import annotations

import argparse
import json

from lockstep.commands.arguments import SubParsers


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    schema = parsers.add_parser(
        "schema", help="print the JSON schema of recipes for editor completion"
    )
    schema.add_argument(
        "algorithm", metavar="ALGORITHM", help="such as ppo, eval, or file.py:Class"
    )
    schema.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config.schema import make_schema

    print(json.dumps(make_schema(options.algorithm), indent=1, ensure_ascii=False))
    return 0
