"""Configs of other libraries that `lockstep convert` is given: what becomes of their keys, and which recipes load.

    python -m benchmarks.convert FOLDER

FOLDER has a folder for each library, named as `--from` does (nemo-rl, openrlhf, trl, verl), with example configs of its
repository; fetch them before; they are not part of this one. Below the table stand the keys that are
unknown, and what Lockstep says of each recipe that it refuses.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.config.foreign_recipe import convert_file, validate
from lockstep.errors import InputError
from lockstep.foreign.libraries import CONVERTIBLE
from lockstep.foreign.words import Kind

_SUFFIXES = {".yaml", ".yml", ".json", ".sh", ".py"}
_COLUMNS = {
    Kind.MAPS: "mapped", Kind.DIFFERS: "differs", Kind.NONE: "none", Kind.IGNORED: "ignored there",
    Kind.REFUSED: "refused", Kind.UNFINISHED: "to finish", Kind.LOST: "lost", Kind.UNKNOWN: "unknown",
}  # fmt: skip


@dataclass
class Count:
    """What was counted of one library."""

    files: int = 0
    recipes: int = 0
    keys: Counter[Kind] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def count(folder: Path, library: str) -> Count:
    """Converts every config in a folder."""
    found = Count()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES):
        found.files += 1
        try:
            converted = convert_file(path, library)
        except InputError as error:
            found.faults.append(str(error))
            continue
        for entry in converted.entries:
            found.keys[entry.kind] += not entry.is_default
        found.faults += [f"{path}: unknown: {entry.theirs}" for entry in converted.list_kind(Kind.UNKNOWN)]
        try:
            validate(converted)
            found.recipes += 1
        except InputError as error:
            found.faults.append(f"{path}: {error}")
    return found


def list_lines(folder: Path) -> Iterator[str]:
    """The table, and what was found below it."""
    counts = {library: count(folder / library, library) for library in CONVERTIBLE if (folder / library).is_dir()}
    yield f"| library | files | keys | {' | '.join(_COLUMNS.values())} | recipes that load |"
    yield "|---|" + "---|" * (len(_COLUMNS) + 3)
    for library, found in counts.items():
        keys = [found.keys[kind] for kind in _COLUMNS]
        cells = [found.files, sum(keys), *keys, found.recipes]
        yield f"| {CONVERTIBLE[library].name} | {' | '.join(map(str, cells))} |"
    yield ""
    for found in counts.values():
        yield from found.faults


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print("\n".join(list_lines(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
