"""Code that all supported versions of Python read alike."""

from __future__ import annotations

import symtable
from collections.abc import Iterator
from pathlib import Path

import lockstep

ROOT = Path(lockstep.__file__).parent.parent
FOLDERS = ("lockstep", "lockstep_logprobs", "lockstep_doctor", "benchmarks", "examples", "tests")


def find_lost(table: symtable.SymbolTable) -> Iterator[str]:
    """Yields names that one comprehension of a function binds, and another one takes from the
    module.

    Python 3.12.0 to 3.12.3, which Ubuntu 24.04 has, finds no value for the second.
    """
    parts = [
        one for one in table.get_children() if one.get_name() in ("listcomp", "setcomp", "dictcomp")
    ]
    bound = {name.get_name() for part in parts for name in part.get_symbols() if name.is_assigned()}
    for part in parts:
        yield from (
            f"line {part.get_lineno()}: {name.get_name()}"
            for name in part.get_symbols()
            if name.is_global() and name.get_name() in bound
        )
    for child in table.get_children():
        yield from find_lost(child)


def test_no_comprehension_reads_global_name_bound_in_sibling_comprehension() -> None:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    tables = {
        str(file): symtable.symtable(file.read_text(encoding="utf-8"), str(file), "exec")
        for file in files
    }
    lost = {name: list(find_lost(table)) for name, table in tables.items()}
    assert len(files) > 500
    assert not {name: some for name, some in lost.items() if some}
