"""Shell completion: the words that can replace the last one. Imports no torch, and runs no code that a recipe names."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError

HIDDEN = "complete"
"""The command that scripts of shells call."""
_FEW = {"boolean": ["true", "false"], "null": ["null"]}
"""Types that have few values."""


@dataclass
class Typed:
    """The words before the last, as the parser reads them.

    Attributes:
        parser: The parser of the command or subcommand that the words have reached.
        positional: Number of positional arguments so far.
        awaits: The flag whose value comes next, if any.
        recipe: The recipe that the words name, if they do.
    """

    parser: argparse.ArgumentParser
    positional: int = 0
    awaits: argparse.Action | None = None
    recipe: str | None = None

    @property
    def next_argument(self) -> argparse.Action | None:
        """The positional argument that comes next; the last one may come again and again."""
        arguments = [action for action in self.parser._actions if not action.option_strings]
        if self.positional < len(arguments):
            return arguments[self.positional]
        return arguments[-1] if arguments and arguments[-1].nargs == "*" else None

    def take(self, word: str) -> None:
        """Takes the next word."""
        if self.awaits is None and word.startswith("-"):
            flags = {name: action for action in self.parser._actions for name in action.option_strings}
            flag = flags.get(word)
            self.awaits = flag if flag is not None and flag.nargs != 0 else None
            return
        action = self.next_argument if self.awaits is None else self.awaits
        if action is not None and action.dest == "recipe":
            self.recipe = word
        if self.awaits is not None:
            self.awaits = None
        elif isinstance(action, argparse._SubParsersAction):
            self.parser, self.positional = action.choices.get(word, argparse.ArgumentParser(add_help=False)), 0
        else:
            self.positional += 1


def find_candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Finds the words that can replace the last one; none where a file is due, which the shell completes itself.

    Args:
        parser: The parser of the command line.
        words: The words behind the program's name; the last may be empty.
    """
    typed = Typed(parser)
    for word in words[:-1]:
        typed.take(word)
    try:
        return [word for word in _list_words(typed, words[-1]) if word.startswith(words[-1])]
    except (LockstepError, OSError, ValueError, RecursionError):  # the command itself says what is wrong
        return []


def _list_words(typed: Typed, last: str) -> Iterable[str]:
    if typed.awaits is None and last.startswith("-"):
        return sorted(name for action in typed.parser._actions for name in action.option_strings)
    action = typed.next_argument if typed.awaits is None else typed.awaits
    match action:
        case None:
            return []
        case argparse.Action(choices=choices) if choices:
            return [str(choice) for choice in choices if choice != HIDDEN]
        case argparse.Action(dest="recipe"):
            return _list_recipes(last)
        case argparse.Action(dest="algorithm"):
            from lockstep.config.registry import names

            return names()
        case argparse.Action(dest="overrides"):
            recipe = typed.recipe or typed.parser.get_default("recipe") or typed.parser.get_default("shipped")
            return [] if recipe is None else _list_overrides(recipe, last)
        case _:
            return []


def _list_recipes(last: str) -> list[str]:
    """Returns the recipes that ship, and the YAML files and folders whose paths begin with `last`."""
    from lockstep.config.recipe_files import find_shipped

    near = sorted(Path().glob(f"{last}*")) if last and not Path(last).is_absolute() else sorted(Path().glob("*.yaml"))
    files = [f"{path}/" if path.is_dir() else str(path) for path in near if path.is_dir() or path.suffix == ".yaml"]
    return [*find_shipped(), *files]


def _list_overrides(recipe: str, last: str) -> list[str]:
    """Returns the options of the section that `last` has reached or, behind `=`, the values of an option."""
    from lockstep.config import Common, registry
    from lockstep.config.errors import Shape
    from lockstep.config.loading import find_short_forms, read_tree

    tree = _leave_out_code(read_tree(recipe))
    algorithm = tree.get("algorithm")
    kind = registry.find(algorithm) if isinstance(algorithm, str) and ":" not in algorithm else Common
    if kind is None:
        return []
    key, equals, _ = last.partition("=")
    *above, name = key.split(".")
    holder: Shape | None = Shape(kind, tree)
    for section in above:
        holder = None if holder is None else holder.within(section)
    if holder is None:
        return []
    if not equals:
        prefix = "".join(f"{section}." for section in above)
        names = [] if holder.is_named and not holder.said else holder.inner()
        return [f"{prefix}{name}{'=' if inner is None else '.'}" for name, inner in names]
    short = None if above else find_short_forms(kind).get(name)
    inner = holder.within(name) if short else None
    fields = (inner or holder).kind.model_json_schema()["properties"]
    return [f"{key}={value}" for value in _list_values(fields.get(name if inner is None else short, {}))]


def _list_values(schema: Mapping[str, Any]) -> list[str]:
    """Returns the values of an option that has few; else nothing."""
    if "anyOf" in schema:
        found = [value for choice in schema["anyOf"] for value in _list_values(choice)]
        return [] if found == ["null"] else found
    if schema.get("type") in _FEW:
        return _FEW[schema["type"]]
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _leave_out_code(tree: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe's options without a task of the user's own, so that completion never imports the user's code."""
    data = tree.get("data")
    task = data.get("task") if isinstance(data, dict) else None
    name = task.get("name") if isinstance(task, dict) else None
    if isinstance(data, dict) and isinstance(name, str) and ":" in name:
        return {**tree, "data": {**data, "task": None}}
    return tree
