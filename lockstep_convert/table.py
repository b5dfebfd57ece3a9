"""Tables of the keys of other libraries: package data, one YAML file per library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from lockstep.system import yaml12

DottedOptions = dict[str, Any]
"""Options of a recipe, or keys of another library, by dotted names."""


class KeyVerdict(Enum):
    """Kind of result for a key of the other library; the value is the heading in the report."""

    CONVERTED = "converted"
    NOT_NEEDED = "not needed here"
    NO_COUNTERPART = "no counterpart"
    LOOK = "look at this"
    UNKNOWN = "unknown: a typo, or newer than the table"


@dataclass(frozen=True)
class KeyEntry:
    """The entry of a key in a table.

    Attributes:
        to: Options that the key may set; the first that the recipe has is used.
        convert: Name of a conversion in `values.py`.
        values: Lockstep's value by the library's, which may be prefixed by an algorithm and a
            slash; a mapping sets several options, null sets none.
        nothing: Why a value sets nothing.
        otherwise: What to look at for a value that `values` does not list; `keep` takes it over,
            `ignore` sets nothing.
        also: Further rows for the same value.
        sets: Options to set for any value; `<key>` stands for the value of another key, `<value>`
            for this one.
        when: Values of other keys without which this key has no effect.
        unless: What to look at in that case; without it the key is not needed.
        times: Keys that the value is multiplied by.
        per: Keys that the value is divided by.
        off: Values that change nothing, in addition to null.
        default: The library's default; a mapping has one for each algorithm.
        adopt: True if the recipe takes over the default.
        note: A remark for the report.
        look: What to look at after the conversion.
        verdict: Fixed verdict of a key that is not converted.
    """

    to: tuple[str, ...] = ()
    convert: str = ""
    values: Mapping[str, Any] | None = None
    nothing: str = ""
    otherwise: str = ""
    also: tuple[KeyEntry, ...] = ()
    sets: Mapping[str, Any] = field(default_factory=dict[str, Any])
    when: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unless: str = ""
    times: tuple[str, ...] = ()
    per: tuple[str, ...] = ()
    off: tuple[Any, ...] = ()
    default: Any = None
    adopt: bool = False
    note: str = ""
    look: str = ""
    verdict: KeyVerdict = KeyVerdict.CONVERTED


@dataclass(frozen=True)
class KeyTable:
    """The keys of one library.

    Attributes:
        name: Name of the library.
        version: The version that the table was written from.
        algorithm: Rules that find the algorithm of a config; the first match counts.
        kinds: Algorithm of the recipe by variant.
        always: Options that the library's trainer implies, by algorithm or variant.
        look: What to look at in any config, by algorithm or variant.
        remarks: Notes on any config, by algorithm or variant; `*` stands for all.
        rows: Entries by key; a key with `*` is a pattern.
    """

    name: str
    version: str
    algorithm: list[dict[str, Any]]
    kinds: Mapping[str, str]
    always: Mapping[str, DottedOptions]
    look: Mapping[str, list[str]]
    remarks: Mapping[str, list[str]]
    rows: Mapping[str, KeyEntry]

    def find_entry(self, key: str) -> KeyEntry | None:
        """The entry of a key; None if unknown."""
        if key in self.rows:
            return self.rows[key]
        return next(
            (row for name, row in self.rows.items() if "*" in name and fnmatchcase(key, name)), None
        )


@cache
def list_libraries() -> tuple[str, ...]:
    """Names of all tables."""
    names = (file.name for file in (files("lockstep_convert") / "tables").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


@cache
def load_table(library: str) -> KeyTable:
    """Reads the table of a library."""
    tree = _read_yaml(f"tables/{library}.yaml")
    rows = {key: _read_row(cell) for key, cell in tree["keys"].items()}
    for sentence, keys in tree["look"].items():
        rows |= {
            key: KeyEntry(note=sentence, verdict=KeyVerdict.LOOK, off=tuple(off or ()))
            for key, off in keys.items()
        }
    for verdict, name in (
        (KeyVerdict.NOT_NEEDED, "not_needed"),
        (KeyVerdict.NO_COUNTERPART, "no_counterpart"),
    ):
        for sentence, keys in tree[name].items():
            rows |= {key: KeyEntry(note=sentence, verdict=verdict) for key in keys.split()}
    return KeyTable(
        name=tree["name"],
        version=tree["version"],
        algorithm=tree["algorithm"],
        kinds=tree.get("kinds", {}),
        always=tree.get("always", {}),
        look=tree.get("look_always", {}),
        remarks=tree.get("remarks", {}),
        rows=rows,
    )


@cache
def load_ours() -> dict[str, DottedOptions]:
    """Facts about Lockstep's options for conversions: requirements and placeholders."""
    return _read_yaml("ours.yaml")


def _read_row(cell: Any) -> KeyEntry:
    """A cell is the name of an option, a list of them, or a mapping with the fields of
    `KeyEntry`.
    """
    if not isinstance(cell, dict):
        return KeyEntry(to=_as_tuple(cell))
    lists = {name: _as_tuple(cell[name]) for name in ("to", "times", "per", "off") if name in cell}
    also = tuple(map(_read_row, cell.get("also", ())))
    return KeyEntry(**{**cell, **lists, "also": also})


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list):
        return tuple(value)
    return (value,)


def _read_yaml(name: str) -> dict[str, Any]:
    return yaml12.parse_yaml((files("lockstep_convert") / name).read_text(encoding="utf-8"))
