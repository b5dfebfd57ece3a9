"""The words of the tables: a row for each key of another library, and what becomes of its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Kind(Enum):
    """The ways to answer a key; the value is the heading of its part of the table."""

    MAPS = "has a counterpart"
    DIFFERS = "differs on purpose"
    NONE = "has no counterpart"
    IGNORED = "ignored by their program, without a word"
    REFUSED = "has a counterpart, but not for this value"
    UNFINISHED = "has a counterpart that you have to finish"
    LOST = "changes what is trained there, and nothing here"
    UNKNOWN = "unknown to this table"


@dataclass(frozen=True)
class Unset:
    """A value that sets nothing here, and why."""

    kind: Kind
    reason: str


@dataclass(frozen=True)
class Several:
    """A value that sets several options, by our keys.

    Attributes:
        values: The options.
        unfinished: What is left to do before the recipe trains what theirs does; empty: nothing.
    """

    values: Mapping[str, Json]
    unfinished: str = ""


Answer: TypeAlias = "Json | Unset | Several"
Convert: TypeAlias = "Callable[[Json, Config], Answer]"


def keep(value: Json, config: Config) -> Answer:
    """The same value."""
    return value


@dataclass(frozen=True)
class Key:
    """A key of another library.

    Attributes:
        theirs: Dotted; with `*` in it, all keys of that form that have no row of their own. Empty where it is no key.
        ours: The options that it may be, of which a recipe has one; `ppo.` stands for `grpo.` too, and `policy.` for
            `optimizer.`.
        convert: Its value here.
        note: What one has to know, behind its name.
        differs: Why it is otherwise here, in one sentence.
        kind: What it is where it has no counterpart.
        off: Values that change nothing, of a key that otherwise would.
        default: Their default, which a recipe says where it was not given; None: ours does.
        page: Its cell in docs/coming_from.md, where that is not the key. A text is the cell itself; `=name` stands for
            the key where cells are its values (`=` alone: no name), and leaves the key without a cell; `-`: none.
    """

    theirs: str
    ours: tuple[str, ...] = ()
    convert: Convert = keep
    note: str = ""
    differs: str = ""
    kind: Kind = Kind.MAPS
    off: tuple[Json, ...] = ()
    default: Json = None
    page: str = ""


def none(because: str, *theirs: str) -> tuple[Key, ...]:
    """Rows of keys that have no counterpart."""
    return tuple(Key(key, note=because, kind=Kind.NONE) for key in theirs)


def differs(because: str, *theirs: str) -> tuple[Key, ...]:
    """Rows of keys that are no option here on purpose."""
    return tuple(Key(key, differs=because, kind=Kind.DIFFERS) for key in theirs)


def lose(because: str, theirs: str, *off: Json) -> Key:
    """The row of a key that changes what is trained, but for null and some values, and has no counterpart."""
    return Key(theirs, note=because, kind=Kind.LOST, off=(None, *off))


def unread(because: str, *theirs: str) -> tuple[Key, ...]:
    """Rows of keys that nothing in that library reads."""
    return tuple(Key(key, note=because, kind=Kind.IGNORED) for key in theirs)


@dataclass(frozen=True)
class Gate:
    """Keys that their program reads only where others allow it.

    Attributes:
        keys: Patterns of the keys.
        is_open: True where they are read.
        because: Why they are not, otherwise.
        but: Patterns of keys that are read nevertheless.
    """

    keys: tuple[str, ...]
    is_open: Callable[[Config], bool]
    because: str
    but: tuple[str, ...] = ()

    def shuts(self, key: str, config: Config) -> bool:
        """True if their program does not read this key."""
        within = any(fnmatchcase(key, form) for form in self.keys)
        return within and not any(fnmatchcase(key, form) for form in self.but) and not self.is_open(config)


@dataclass(frozen=True)
class Config:
    """A config of another library, flat.

    Attributes:
        given: Its values by dotted keys.
        program: The command or file that it is for, as far as it is known.
        processes: Training processes of the command that starts it, if it says so.
        defaults: Their values of keys that are not given.
        algorithm: The algorithm of ours that it becomes, once it is known.
    """

    given: Mapping[str, Json]
    program: str = ""
    processes: int | None = None
    defaults: Mapping[str, Json] = field(default_factory=dict)
    algorithm: str = ""

    def get(self, key: str) -> Json:
        """A value, or their default; None where there is neither."""
        return self.given[key] if key in self.given else self.defaults.get(key)

    def number(self, key: str, otherwise: float = 0) -> float:
        """A value that should be a finite number; `otherwise` where it is none."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return otherwise
        return value if abs(value) < math.inf else otherwise

    def whole(self, key: str, otherwise: int) -> int:
        """A value that should be a whole number; `otherwise` where it is no number."""
        return int(self.number(key, otherwise))

    def says(self, key: str) -> bool:
        """True if it is on."""
        return self.get(key) is True


@dataclass(frozen=True)
class Library:
    """A library, and the table of its keys.

    Attributes:
        name: As people write it.
        option: The word for `--from`; empty where its configs are not converted.
        version: What was read.
        rows: The table; exact keys go before forms.
        find_algorithm: The algorithm of ours that a config is for; None where it does not say.
        gates: What is read only under conditions.
        find_defaults: Defaults that go before those of the rows.
        always: What their program does without a key for it, by our keys.
        remark: What one has to know of a config besides its keys.
        prefix: What docs/coming_from.md leaves off its keys.
    """

    name: str
    option: str
    version: str
    rows: tuple[Key, ...]
    find_algorithm: Callable[[Config], str | None] = lambda config: None
    gates: tuple[Gate, ...] = ()
    find_defaults: Callable[[Config], Mapping[str, Json]] = lambda config: {}
    always: Callable[[Config], Mapping[str, Json]] = lambda config: {}
    remark: Callable[[Config], tuple[str, ...]] = lambda config: ()
    prefix: str = ""

    @cached_property
    def by_key(self) -> Mapping[str, Key]:
        """The rows of single keys."""
        return {row.theirs: row for row in self.rows if row.theirs and "*" not in row.theirs}

    @cached_property
    def forms(self) -> tuple[Key, ...]:
        """The rows of forms of keys."""
        return tuple(row for row in self.rows if "*" in row.theirs)

    @cached_property
    def defaults(self) -> Mapping[str, Json]:
        """Their defaults, as far as the table has them."""
        return {key: row.default for key, row in self.by_key.items() if row.default is not None}

    def with_defaults(self, config: Config, algorithm: str = "") -> Config:
        """A config with their defaults, and first those of an algorithm of ours where it is known."""
        config = replace(config, algorithm=algorithm)
        first = self.find_defaults(config)
        return replace(config, defaults={**first, **self.defaults, **first})

    def find(self, key: str) -> Key | None:
        """The row of a key; None where the library has no such key."""
        return self.by_key.get(key) or next((row for row in self.forms if fnmatchcase(key, row.theirs)), None)


def find_option(row: Key, options: Collection[str]) -> str | None:
    """The option, of those that a recipe has, that a row is of; None where there is none."""
    return next((option for key in row.ours for option in spell(key) if option in options), None)


def spell(key: str) -> Iterator[str]:
    """An option as each algorithm may have it: what is below `ppo.` in the tables is below `grpo.` as well."""
    yield key
    for there, here in (("ppo.", "grpo."), ("policy.", "optimizer.")):
        if key.startswith(there):
            yield here + key.removeprefix(there)


def under(prefix: str, names: str) -> tuple[str, ...]:
    """Keys of one section, by their names with spaces between."""
    return tuple(f"{prefix}.{name}" for name in names.split())


def flatten(tree: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    """The values of a tree by dotted keys; an empty section is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
