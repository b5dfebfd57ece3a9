"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

from lockstep.system.paths import path_argument, source_argument

SubParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The subcommands of a parser; each file here adds its own."""


def add_recipe(parser: argparse.ArgumentParser, options: str) -> None:
    """Adds the arguments for a recipe and its overrides; `options` is help text for overrides."""
    parser.add_argument("recipe", help="a recipe that ships with Lockstep, or a YAML file")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=options)
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds the option that allows other people's Python files to run."""
    parser.add_argument(
        "--trust",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        type=path_argument,
        help=(
            "Python files allowed to run: of a model folder (modeling_mine.py), or named by a "
            "run's recipe"
        ),
    )


def add_model(
    parser: argparse.ArgumentParser, model: Callable[[str], str] = source_argument
) -> None:
    """Adds the argument that names a model; `model` parses it."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=model,
        help="a Hugging Face folder, hf:owner/name, or the folder of a finished run",
    )


def add_out(
    parser: argparse.ArgumentParser, metavar: str, what: str, default: str | None = None
) -> None:
    """Adds the argument for the file or folder of the results; `what` is its help text."""
    parser.add_argument("--out", metavar=metavar, type=path_argument, default=default, help=what)


def add_asking(
    parser: argparse.ArgumentParser,
    rows: str,
    option: str,
    recipe: str,
    folder: str,
    model: Callable[[str], str] = source_argument,
) -> None:
    """Adds the arguments of a command that runs a model on the rows of a file.

    Args:
        parser: The command's parser.
        rows: Contents of the file, for the help.
        option: An example of an override.
        recipe: The default recipe.
        folder: Folder of the results.
        model: Parses the argument that names the model.
    """
    add_model(parser, model)
    parser.add_argument(
        "data", metavar="DATA", type=source_argument, help=f"{rows}: JSONL, a JSON list or Parquet"
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help=f"such as {option}"
    )
    parser.add_argument("--recipe", help=f"base recipe (default: the run's own, or {recipe})")
    add_trust(parser)
    add_out(parser, "FOLDER", f"results folder (default: a folder in {folder})")
