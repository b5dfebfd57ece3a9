"""Reads configs of other libraries: YAML and JSON files, files with one command, and command-line
words.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.core.errors import InputError
from lockstep.system import yaml12
from lockstep_convert.table import DottedOptions

_TREES = (".yaml", ".yml", ".json")
_COMMANDS = (".sh", ".bash", ".slurm", ".sbatch", ".txt")
_LARGEST_BYTES = 1 << 18
_OVERRIDE = re.compile(r"\+{0,2}([\w.@/]+)=(.*)", re.DOTALL)
_FLAG = re.compile(r"--([\w.-]+)(?:=(.*))?", re.DOTALL)
_INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{mul:(.+),\s*(.+)\}")
_SHELL = re.compile(r"`|\$\(|;|\||&|<|>")
_MOST_STEPS = 20
_MOST_ALIASES = 16  # aliases of aliases may multiply the text


@dataclass
class ForeignConfig:
    """A config of another library.

    Attributes:
        tree: Its keys, nested.
        program: The words before the first option of a command, such as `python3 -m
            verl.trainer.main_ppo`.
        files: Names of the files that were read.
    """

    tree: DottedOptions = field(default_factory=dict[str, Any])
    program: str = ""
    files: list[str] = field(default_factory=list[str])

    def lay_over(self, tree: Mapping[str, Any]) -> None:
        """Adds keys, which override earlier ones."""
        self.tree = yaml12.merge_over(self.tree, tree)


def read_config(words: Collection[str]) -> ForeignConfig:
    """Reads files and words in their order; what comes later wins.

    Raises:
        InputError: A file is missing or cannot be read, or a word is not an option.
    """
    config = ForeignConfig()
    rest: list[str] = []
    for word in words:
        path = Path(word)
        if path.suffix in _TREES and "=" not in word and not word.startswith("-") and not rest:
            config.lay_over(_read_tree(path))
            config.files.append(path.stem)
        elif path.suffix in _COMMANDS and "=" not in word and not rest:
            _read_words(_split_command(path), config)
        else:
            rest.append(word)
    _read_words(rest, config)
    if not config.tree:
        hint = ""
        if any(word.endswith(".py") for word in words):
            hint = (
                ": a Python program is not run; save its training command, such as the one in its "
                "docstring, as command.sh, and convert that"
            )
        raise InputError(f"no keys with values in {' '.join(words)}{hint}")
    return config


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    if path.stat().st_size > _LARGEST_BYTES:
        raise InputError(f"{path} is larger than {_LARGEST_BYTES} bytes; give a config file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None


def _read_tree(path: Path) -> DottedOptions:
    text = _read_text(path)
    try:
        if path.suffix == ".json":
            tree = json.loads(text)
        else:
            tree = yaml12.parse_yaml(text, _MOST_ALIASES)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{path} has no keys with values")
    return tree


def _split_command(path: Path) -> list[str]:
    """Returns the words of the single command in a file; never runs a shell."""
    lines = _read_text(path).replace("\\\n", " ").splitlines()
    commands: list[str] = []
    for line in lines:
        if line.strip() and not line.lstrip().startswith(("#", "set ")):
            commands.append(line)
    if len(commands) != 1:
        raise InputError(
            f"{path} has {len(commands)} commands; write a file with only the training command, "
            "with variables replaced by their values"
        )
    unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "", commands[0])
    found = _SHELL.search(unquoted)
    if found is not None:
        raise InputError(f"{path} uses shell syntax ({found[0]}); write the plain command")
    try:
        return shlex.split(commands[0], comments=True)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _read_words(words: list[str], config: ForeignConfig) -> None:
    """Reads `key=value` and `--flag value` words after the program's name."""
    # the program's name is a Python file, a module, or `trl NAME`
    start = 0
    for index, word in enumerate(words):
        if word.endswith(".py") and "=" not in word:
            start = index + 1
        elif word in ("-m", "trl"):
            start = index + 2
    config.program = " ".join([*config.program.split(), *words[:start]])
    flag: str | None = None
    values: list[Any] = []
    for word in [*words[start:], "--"]:
        matched = _FLAG.fullmatch(word)
        if flag is not None and not values:
            override = None
        else:
            override = _OVERRIDE.fullmatch(word)
        if word == "--" or matched is not None or override is not None:
            _put_flag(config, flag, values)
            flag = None
            values = []
        if matched is not None:
            flag = matched[1].replace("-", "_")
            if matched[2] is None:
                values = []
            else:
                values = [yaml12.parse_or_text(matched[2])]
        elif override is not None:
            config.lay_over(yaml12.nest_value(override[1], yaml12.parse_or_text(override[2])))
        elif flag is not None:
            values.append(yaml12.parse_or_text(word))
        elif Path(word).is_dir():
            raise InputError(f"{word} is a folder; name the config file in it")
        elif word not in ("--", "$@"):
            raise InputError(f"{word} is neither key=value nor the value of a --flag")


def _put_flag(config: ForeignConfig, flag: str | None, values: list[Any]) -> None:
    if flag is not None:
        if len(values) > 1:
            value = values
        elif values:
            value = values[0]
        else:
            value = True
        config.lay_over(yaml12.nest_value(flag, value))


def flatten_tree(
    tree: Mapping[str, Any], whole: Collection[str] = (), above: str = ""
) -> Iterator[tuple[str, Any]]:
    """The values of a tree by dotted keys; keys in `whole`, and empty mappings, are values."""
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and value and key not in whole:
            yield from flatten_tree(value, whole, f"{key}.")
        else:
            yield key, value


def resolve_interpolations(given: Mapping[str, Any]) -> DottedOptions:
    """Replaces values that are a reference to a different key, `${a.b}`, `${.sibling}` or
    `${..above}`; other values are unchanged.
    """
    return {key: _follow_references(key, value, given) for key, value in given.items()}


def _follow_references(key: str, value: Any, given: Mapping[str, Any]) -> Any:
    product = _PRODUCT.fullmatch(str(value))
    if product is not None:
        factors: list[Any] = []
        for text in product.groups():
            factors.append(_follow_references(key, yaml12.parse_or_text(text), given))
        if all(isinstance(factor, int) for factor in factors):
            return math.prod(factors)
    for _ in range(_MOST_STEPS):
        if isinstance(value, str):
            matched = _INTERPOLATION.fullmatch(value)
        else:
            matched = None
        if matched is None:
            return value
        name = matched[1]
        path = name.lstrip(".")
        dots = len(name) - len(path)
        if dots:  # one names a sibling, each further one a section above
            name = ".".join([*key.split(".")[:-dots], path])
        if name not in given:
            return value
        key = name
        value = given[name]
    return value
