"""Reads a config of another library from a file: YAML with its bases, JSON, a shell script, or Python."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lockstep import yaml12
from lockstep.errors import InputError
from lockstep.foreign.interpolation import fill_in
from lockstep.foreign.python_files import read_program
from lockstep.foreign.shell import find_command
from lockstep.foreign.words import Config, Json, flatten

_MOST_BASES = 20
_LARGEST_BYTES = 1 << 18
_TOO_DEEP = f"{{}} is nested more than {yaml12.DEEPEST} deep"


@dataclass(frozen=True)
class ForeignFile:
    """The config in a file, and the files that it builds on which are not there."""

    config: Config
    missing: tuple[str, ...] = ()


def read_config(path: Path) -> ForeignFile:
    """Reads a file by the ending of its name.

    Raises:
        InputError: There is no such file, it is none of these kinds, or cannot be read as one.
    """
    try:
        read = _read(path)
    except (RecursionError, MemoryError):  # MemoryError: Python's own parser
        raise InputError(_TOO_DEEP.format(path)) from None
    if any(_is_deep(value, yaml12.DEEPEST) for value in read.config.given.values()):
        raise InputError(_TOO_DEEP.format(path))
    return read


def _is_deep(value: Json, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deep(item, levels - 1) for item in inner)


def _read(path: Path) -> ForeignFile:
    text = _read_text(path)
    match path.suffix:
        case ".yaml" | ".yml":
            bases = _Bases()
            given = _fill_in(path, dict(flatten(bases.read(path))))
            return ForeignFile(Config(given, path.stem), tuple(bases.missing))
        case ".json":
            return ForeignFile(Config(dict(flatten(_as_tree(path, _parse_json(path, text)))), path.stem))
        case ".sh" | ".bash" | ".slurm" | ".sbatch":
            return _read_script(path, text)
        case ".py":
            return _read_python(path, text)
        case _:
            raise InputError(
                f"{path}: the name must end in .yaml, .yml, .json, .sh or .py, since that says how to read it"
            )


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.stat().st_size > _LARGEST_BYTES:
        raise InputError(f"{path} has more than {_LARGEST_BYTES} bytes, which no config has")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8") from None


def _as_tree(path: Path, tree: object) -> dict[str, Json]:
    if not isinstance(tree, dict) or not tree:
        raise InputError(f"{path} holds no keys with values")
    return tree


def _parse_json(path: Path, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from None


@dataclass
class _Bases:
    """Reads a file over the files that its `defaults` name, those of Hydra without an ending, those of NeMo RL with.

    A section of NeMo RL's with `_override_` in it has nothing of the files below.

    Attributes:
        count: Files that were read.
        missing: Files that are not there.
    """

    count: int = 0
    missing: list[str] = field(default_factory=list)

    def read(self, path: Path) -> dict[str, Json]:
        tree = _parse_yaml(path)
        self.count += 1
        if self.count > _MOST_BASES + 1:
            raise InputError(f"{path} builds on more than {_MOST_BASES} files, or on itself")
        named = tree.get("defaults")
        below: dict[str, Json] = {}
        for name in named if isinstance(named, list) else [named]:
            base = None if not isinstance(name, str) or name == "_self_" else _find_base(path, name)
            if base is not None:
                inner = self.read(base)
                inner.pop("defaults", None)
                below = yaml12.lay_over(below, inner)
            elif name not in (None, "_self_"):
                self.missing.append(str(name))
        for key, section in tree.items():
            if isinstance(section, dict) and section.pop("_override_", False):
                below.pop(key, None)
        return yaml12.lay_over(below, tree)


def _parse_yaml(path: Path) -> dict[str, Json]:
    try:
        return _as_tree(path, yaml12.parse(_read_text(path), merges=True))
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _find_base(path: Path, name: str) -> Path | None:
    candidates = (path.parent / name, path.parent / f"{name}.yaml")
    return next((file for file in candidates if file.is_file()), None)


def _fill_in(path: Path, given: Mapping[str, Json]) -> dict[str, Json]:
    try:
        return fill_in(given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_script(path: Path, text: str) -> ForeignFile:
    try:
        command = find_command(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    given = command.read()
    config = given.get("config")
    below: dict[str, Json] = {}
    missing: tuple[str, ...] = ()
    if isinstance(config, str) and (path.parent / config).is_file():
        bases = _Bases()
        below = dict(flatten(bases.read(path.parent / config)))
        missing = tuple(bases.missing)
    elif isinstance(config, str):
        missing = (config,)
    missing = (*missing, *command.unread)
    named = given.get("--config-name")
    if isinstance(named, str) and "trainer" not in named:  # verl's own have defaults of the table
        missing = (*missing, named)
    return ForeignFile(Config(_fill_in(path, below | given), command.program, command.processes), missing)


def _read_python(path: Path, text: str) -> ForeignFile:
    """A program of TRL: `GRPOConfig(learning_rate=1e-6)`, and what its trainer is called with."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"{path}: line {error.lineno}: this is no Python") from None
    except ValueError:  # a zero byte
        raise InputError(f"{path}: this is no Python") from None
    read = read_program(tree)
    if read is None:
        raise InputError(f"{path}: no configuration such as GRPOConfig(learning_rate=1e-6) is made in it")
    return ForeignFile(read.config, read.unread)
