"""Names of Lockstep's own code that the documentation quotes exist; LOG.md and CHANGELOG.md tell of
the past.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = "mission.md"
"""A page of results, which quotes lines of the commit that was measured."""
GUIDES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != MEASURED]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDES]
PACKAGES = "lockstep_logprobs|lockstep_doctor|lockstep_convert|lockstep"
DOTTED = re.compile(rf"(?<![\w./-])((?:{PACKAGES})(?:\.\w+)+)(?::(\w+))?")
FILE = re.compile(rf"(?<![\w./-])((?:{PACKAGES})/[\w/]+\.py)(?::(\w+))?")


@cache
def names_of(file: Path) -> frozenset[str]:
    """Functions, classes, constants, imports and, for a class, its members of a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name.rpartition(".")[2])
            case ast.Constant(value=str(name)) if file.name == "__init__.py":
                names.add(name)  # __all__ of what is imported when it is asked for
            case _:
                pass
    return frozenset(names)


def exists(dotted: str, member: str = "") -> bool:
    """Whether there is such a module, or a module with such a name; `member` is what stands behind
    a colon.
    """
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = (
            path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        )
        if file.is_file():
            wanted = [*parts[length:], *([member] if member else [])]
            return all(name in names_of(file) for name in wanted)
    return False


def find_missing(text: str) -> list[str]:
    """Names in backticks and in blocks of code that are not in the code of today."""
    quoted = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    missing = [
        f"{dotted}:{member}" if member else dotted
        for dotted, member in DOTTED.findall(quoted)
        if not exists(dotted, member)
    ]
    for path, member in FILE.findall(quoted):
        file = ROOT / path
        is_name = member and not member.isdigit()  # else the number of a line
        if not file.is_file() or (is_name and member not in names_of(file)):
            missing.append(f"{path}:{member}" if member else path)
    return missing


def imported(text: str) -> list[str]:
    """What `from lockstep.x import y, z` of a text asks for, as dotted names."""
    found = re.findall(rf"^from ((?:{PACKAGES})[\w.]*) import ([\w, ]+)", text, re.MULTILINE)
    return [
        f"{module}.{name.strip()}"
        for module, names in found
        for name in names.split(",")
        if name.strip()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_lockstep_name_quoted_in_docs_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not find_missing(text)
    assert not [name for name in imported(text) if not exists(name)]
