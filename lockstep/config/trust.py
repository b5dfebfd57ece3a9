"""Trust in other people's Python files: they run only after training with them, or `--trust`.

These files belong to model folders, or are named by a run's recipe: a run's folder, and the code
next to it, may come from someone else. Trust is by content: a copy in a run's folder is trusted
with its original, and a changed file is not. Code that has run here is recorded in Lockstep's cache
folder: each file that a recipe names, and what it imports from its folder. Imports nothing heavy.
"""

from __future__ import annotations

import ast
import os
import site
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.config.user_code import find_file, is_imported, is_in_program
from lockstep.core.errors import InputError, LockstepError
from lockstep.system.cache_folder import find_cache_folder
from lockstep.system.command_line import repeat_command
from lockstep.system.guarded_imports import digest_content, guard_folder, is_trusted, trust_content
from lockstep.system.printable import note_once
from lockstep.system.whole_files import append_lines
from lockstep.system.yaml12 import YAMLKeys, list_texts

NOTES = "code_run_here.txt"
"""File in the cache folder with one line per file: its SHA-256."""

_OWN = Path(__file__).parents[1]


class UntrustedCode(InputError):
    """A model needs Python files from its folder that the user has not allowed to run."""

    @classmethod
    def from_files(cls, folder: Path, model_type: object, files: Sequence[Path]) -> UntrustedCode:
        """The error for these files of a folder."""
        return cls(
            f"{folder} implements its model type {model_type!r} in custom Python code, which is "
            f"not trusted: {', '.join(map(describe_file, files))}; if you have read it and trust "
            "it: "
            f"{describe_trust(files)}"
        )


def trust(*files: str | os.PathLike[str]) -> None:
    """Allows this process and its children to run these Python files with their current content.

    Args:
        files: Python files of a model's folder, or that a run's recipe names. They run while their
            content stays the same, and so do copies of them.

    Raises:
        InputError: One of them is not a Python file.
    """
    for file in map(Path, files):
        if file.suffix != ".py" or not file.is_file():
            raise InputError(f"--trust {file}: no such Python file; put overrides before --trust")
    trust_content(Path(file).read_bytes() for file in files)


def describe_file(file: Path) -> str:
    """A file of code, as its absolute path and the digest of its content."""
    return f"{file.resolve()} (sha256 {digest_content(file.read_bytes())[:16]})"


def describe_trust(files: Sequence[Path]) -> str:
    """The command-line option that allows files; in other programs, the Python call."""
    return (
        repeat_command("--trust", *files)
        or f"lockstep.trust({', '.join(repr(str(file)) for file in files)})"
    )


def log_code_file(option: str, reference: str) -> None:
    """Logs the file that an option runs, once per content; not for Lockstep's own files."""
    file = find_file(reference)
    if file is not None and not file.resolve().is_relative_to(_OWN):
        note_once(f"{option} {reference} runs {describe_file(file)}")


def require_known(recipe: Path, option: str, reference: str) -> None:
    """Refuses unknown code, and guards the import of known code.

    Args:
        recipe: The recipe of a run.
        option: The option that names the code.
        reference: `file.py:name` or `package.module:name`.

    Raises:
        InputError: The user has not trained with the code on this machine and does not trust it.
    """
    file = find_file(reference)
    if file is None or is_imported(reference) or _is_installed(file):
        return
    file, root = _find_root(reference, file)
    files = {own: own.read_bytes() for own in _list_imported(file, root)}
    known = _read_known()
    unknown = [
        own
        for own, text in files.items()
        if not is_trusted(text) and digest_content(text) not in known
    ]
    if unknown:
        raise InputError(
            f"{recipe}: {option} {reference} runs code that this machine has not trained with: "
            f"{', '.join(map(describe_file, unknown))}; a run may come from someone else, so read "
            f"the code, and if you trust it: {describe_trust(unknown)}"
        )
    trust_content(files.values())
    guard_folder(root)


def list_references(tree: Mapping[str, Any]) -> Iterator[tuple[YAMLKeys, str, Path]]:
    """Yields the options of a recipe that name code in a file, their values, and the file."""
    for keys, text in list_texts(tree):
        file = find_file(text)
        if file is not None and not is_in_program(text):
            yield keys, text, file


def note_run_here(tree: Mapping[str, Any]) -> None:
    """Records that the user ran the code in this recipe on this machine."""
    run = set[str]()
    for _, reference, file in list_references(tree):
        if not _is_installed(file):
            imported = _list_imported(*_find_root(reference, file))
            run |= {digest_content(own.read_bytes()) for own in imported}
    new = sorted(run - _read_known())
    if new:
        with suppress(OSError, LockstepError):  # later commands will then require --trust
            append_lines(
                find_cache_folder() / NOTES, "".join(f"{digest}\n" for digest in new).encode()
            )


def _read_known() -> set[str]:
    """Digests of all code that has run here."""
    try:
        return set((find_cache_folder() / NOTES).read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return set()


def _is_installed(file: Path) -> bool:
    """True if the code came with Python, Lockstep or an installed package."""
    paths = sysconfig.get_paths()
    named = (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    folders = (*named, *site.getsitepackages(), site.getusersitepackages(), _OWN)
    return any(file.resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def _find_root(reference: str, file: Path) -> tuple[Path, Path]:
    """The file as imported, and the folder on `sys.path` from which its neighbors are imported."""
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        return file.resolve(), file.resolve().parent
    file = file.absolute()
    return file, file.parents[place.count(".") + (file.name == "__init__.py")]


def _list_imported(file: Path, root: Path) -> list[Path]:
    """A file and the files of a folder that it imports or may import, recursively.

    Lockstep's own files are left out.
    """
    found = dict[Path, None]()
    todo = [file]
    while todo:
        own = todo.pop()
        if own not in found and not own.is_relative_to(_OWN):
            found[own] = None
            todo += _find_modules(_read_imports(own, root), root)
    return list(found)


def _read_imports(file: Path, root: Path) -> Iterator[tuple[str, ...]]:
    """Yields the dotted parts of all names that a file imports, modules and their attributes."""
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it cannot be imported either
        return
    package = file.relative_to(root).parent.parts
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = (*above, *(node.module or "").split("."))
            yield from ((*module, alias.name) for alias in node.names)


def _find_modules(names: Iterable[tuple[str, ...]], root: Path) -> Iterator[Path]:
    """Yields the files in a folder that importing these names may run, packages included."""
    for parts in names:
        place = root
        for part in filter(None, parts):
            place /= part
            yield from filter(Path.is_file, (place / "__init__.py", place.with_name(f"{part}.py")))
