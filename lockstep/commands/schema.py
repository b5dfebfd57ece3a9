"""`lockstep schema`: prints the JSON schema of recipe files, with which an editor completes them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lockstep.commands.arguments import Parsers, add_out
from lockstep.system.records import refuse_other


def add(parsers: Parsers) -> None:
    """Adds the command to a parser."""
    schema = parsers.add_parser("schema", help="print the JSON schema of recipes, for an editor that completes them")
    schema.add_argument(
        "algorithm",
        nargs="?",
        metavar="ALGORITHM",
        help="such as ppo, eval, or file.py:Class; without it, the schema of all recipes",
    )
    add_out(schema, "FILE", "write it there instead")
    schema.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from lockstep.config.schema import make_common_schema, make_schema

    made = make_common_schema() if options.algorithm is None else make_schema(options.algorithm)
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        refuse_other(Path(options.out))
        Path(options.out).write_text(text, encoding="utf-8")
    return 0
