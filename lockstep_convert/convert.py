"""Converts a config of another library to the options of a recipe, with a verdict for each of its
keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from lockstep.config import registry
from lockstep.config.errors import RecipeShape, list_options
from lockstep.core.errors import InputError
from lockstep_convert.read import ForeignConfig, flatten_tree, resolve_interpolations
from lockstep_convert.table import (
    DottedOptions,
    KeyEntry,
    KeyTable,
    KeyVerdict,
    list_libraries,
    load_ours,
    load_table,
)
from lockstep_convert.values import (
    CONVERSIONS,
    TAKES_NULL,
    DoubtfulValue,
    fill_references,
    shorten_value,
    spell_value,
)

_VARIABLE = re.compile(r"\$[\w{(]")
_SPELLINGS = (("ppo.", "grpo."), ("policy.", "optimizer."))
"""Option prefixes in the tables, and how other algorithms spell them."""


@dataclass(frozen=True)
class ConvertedKey:
    """The result for one key of the other library.

    Attributes:
        theirs: The key.
        value: Its value.
        verdict: Kind of result.
        options: Options that it sets.
        sentence: A remark for the report.
        is_default: True if the file does not set the key and `value` is the library's default.
    """

    theirs: str
    value: Any
    verdict: KeyVerdict
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sentence: str = ""
    is_default: bool = False


@dataclass(frozen=True)
class ConvertedConfig:
    """A converted config.

    Attributes:
        table: Table of its library.
        algorithm: Algorithm of the recipe.
        entries: One for each key of the file, then defaults of the library that need a look.
        options: Options of the recipe, by dotted names.
        notes: Source of each option.
        defaults: Options that the file leaves at the library's default: its key and value.
        remarks: Facts about the library's trainer that no key expresses.
    """

    table: KeyTable
    algorithm: str
    entries: tuple[ConvertedKey, ...]
    options: Mapping[str, Any]
    notes: Mapping[str, str]
    defaults: Mapping[str, tuple[str, Any]]
    remarks: tuple[str, ...] = ()

    def select_entries(self, verdict: KeyVerdict) -> list[ConvertedKey]:
        """The entries with a verdict."""
        return [entry for entry in self.entries if entry.verdict is verdict]


def order_options(algorithm: str) -> tuple[str, ...]:
    """All options of an algorithm's recipes, in their order."""
    kind = registry.find_algorithm(algorithm)
    assert kind is not None, algorithm
    return tuple(list_options(RecipeShape(kind)))


def detect_library(tree: Mapping[str, Any]) -> str:
    """Returns the library that knows most of a config's keys.

    Raises:
        InputError: No library knows any of them, or two know equally many.
    """
    keys = [key for key, _ in flatten_tree(tree)]
    counts: dict[str, int] = {}
    for name in list_libraries():
        table = load_table(name)
        counts[name] = sum(table.find_entry(key) is not None for key in keys)
    most = max(counts.values())
    best = [name for name, count in counts.items() if count == most]
    if not most or len(best) > 1:
        if not most:
            found = "no library knows its keys"
        else:
            found = f"{' and '.join(best)} know equally many of its keys"
        raise InputError(
            f"{found}: name the library, --from {' or --from '.join(best if most else counts)}"
        )
    return best[0]


def convert_config(
    config: ForeignConfig, library: str, algorithm: str | None = None
) -> ConvertedConfig:
    """Converts a config.

    Args:
        config: The config.
        library: Name of its table.
        algorithm: Algorithm or variant, such as rloo; None: from the config.

    Raises:
        InputError: The config does not name a supported algorithm.
    """
    table = load_table(library)
    whole = [key for key, row in table.rows.items() if row.convert == "mapping"]
    given = resolve_interpolations(dict(flatten_tree(config.tree, whole)))
    kind = algorithm or _find_kind(table, config, given)
    if kind is None:
        raise InputError("the config names no algorithm that Lockstep supports; set --algorithm")
    return _ConfigConversion(table, kind, given, tuple(config.files)).convert_all()


def _find_kind(table: KeyTable, config: ForeignConfig, given: Mapping[str, Any]) -> str | None:
    for rule in table.algorithm:
        if "program" in rule and rule["program"] in config.program.lower().rsplit("/", 1)[-1]:
            return rule["is"]
        if "has" in rule and any(fnmatchcase(key, rule["has"]) for key in given):
            return rule["is"]
        if "key" in rule:
            value = given.get(rule["key"], rule.get("default"))
            if isinstance(value, list):
                names = value
            else:
                names = [value]
            found = next((name for name in map(spell_value, names) if name in rule["is"]), None)
            if found is not None:
                return rule["is"][found]
    return None


class _ConfigConversion:
    """The state of one conversion."""

    def __init__(
        self, table: KeyTable, kind: str, given: DottedOptions, files: tuple[str, ...]
    ) -> None:
        self.table = table
        self.kind = kind
        self.given = given
        self.files = files
        self.algorithm = table.kinds.get(kind, kind)
        self.known = order_options(self.algorithm)
        self.options: DottedOptions = {}
        self.notes: dict[str, str] = {}
        self.defaults: dict[str, tuple[str, Any]] = {}

    def convert_all(self) -> ConvertedConfig:
        """Converts all keys, then adds other required options."""
        entries = [self._convert_key(key, value) for key, value in self.given.items()]
        entries += self._read_defaults()
        for option, value in self.table.always.get(
            self.kind, self.table.always.get(self.algorithm, {})
        ).items():
            if self._is_free(option) and self._find_missing(option, value) is None:
                self._put_option(option, value, f"as {self.table.name} does")
        for sentence in self.table.look.get(self.kind, ()):
            entries.append(ConvertedKey(self.kind, None, KeyVerdict.LOOK, {}, sentence))
        entries = list(map(self._check_requirements, entries))
        entries += self._fill_required()
        remarks = (*self.table.remarks.get(self.kind, ()), *self.table.remarks.get("*", ()))
        return ConvertedConfig(
            self.table,
            self.algorithm,
            tuple(entries),
            self.options,
            self.notes,
            self.defaults,
            remarks,
        )

    def _convert_key(self, key: str, value: Any) -> ConvertedKey:
        row = self.table.find_entry(key)
        if row is None:
            return ConvertedKey(key, value, KeyVerdict.UNKNOWN)
        if key == "defaults" and set(self.files) >= set(_list_bases(value)):
            return ConvertedKey(key, value, KeyVerdict.NOT_NEEDED, {}, "the files are read")
        entry = self._judge_key(row, key, value)
        clash = next(
            (name for name, new in entry.options.items() if self.options.get(name, new) != new),
            None,
        )
        if clash is not None:
            sentence = (
                f"{clash} is already {spell_value(self.options[clash])}, from {self.notes[clash]}"
            )
            return replace(entry, verdict=KeyVerdict.LOOK, options={}, sentence=sentence)
        for option, new in entry.options.items():
            self._put_option(
                option, new, key if new == value else f"{key}: {shorten_value(key, value)}"
            )
        return entry

    def _judge_key(self, row: KeyEntry, key: str, value: Any) -> ConvertedKey:
        """Returns the verdict on a value and the options that it sets."""
        if row.verdict is not KeyVerdict.CONVERTED:
            is_off = row.verdict is KeyVerdict.LOOK and (value is None or value in row.off)
            return ConvertedKey(
                key, value, KeyVerdict.NOT_NEEDED if is_off else row.verdict, {}, row.note
            )
        unmet = next(
            (name for name, wanted in row.when.items() if not self._is_met(name, wanted)), None
        )
        if unmet is not None:
            sentence = (
                row.unless
                or row.nothing
                or f"not read, since {unmet} is {spell_value(self._find_value(unmet))}"
            )
            return ConvertedKey(
                key, value, KeyVerdict.LOOK if row.unless else KeyVerdict.NOT_NEEDED, {}, sentence
            )
        if isinstance(value, str) and _VARIABLE.search(value.removeprefix("$HOME/")):
            return ConvertedKey(key, value, KeyVerdict.LOOK, {}, "an unset variable")
        if value in row.off or (
            value is None and row.convert not in TAKES_NULL and row.values is None
        ):
            return ConvertedKey(
                key, value, KeyVerdict.NOT_NEEDED, {}, "off, which is the default here"
            )
        try:
            found = self._convert_value(row, value)
            for other in row.also:
                if all(self._is_met(name, wanted) for name, wanted in other.when.items()):
                    found |= self._convert_value(other, value)
        except DoubtfulValue as doubt:
            return ConvertedKey(key, value, KeyVerdict.LOOK, {}, str(doubt))
        except (TypeError, ValueError, ZeroDivisionError):
            return ConvertedKey(key, value, KeyVerdict.LOOK, {}, "an unexpected value")
        if not found:
            return ConvertedKey(
                key, value, KeyVerdict.NOT_NEEDED, {}, row.nothing or row.note or "as it is here"
            )
        spelled = ((self._spell_option(option), new) for option, new in found.items())
        options = {option: new for option, new in spelled if option is not None}
        if not options:
            return ConvertedKey(
                key, value, KeyVerdict.NO_COUNTERPART, {}, f"not an option of {self.algorithm}"
            )
        if row.look:
            return ConvertedKey(key, value, KeyVerdict.LOOK, options, row.look)
        return ConvertedKey(key, value, KeyVerdict.CONVERTED, options, row.note)

    def _convert_value(self, row: KeyEntry, value: Any) -> DottedOptions:
        """The options that a value sets, by the names of the tables."""
        own = f"{self.algorithm}/{spell_value(value)}"
        if row.values is not None and own in row.values:
            name = own
        else:
            name = spell_value(value)
        if row.values is not None and name in row.values:
            value = row.values[name]
            if value is None:
                return {}
        elif row.values is not None and row.otherwise == "ignore":
            return {}
        elif row.values is not None and row.otherwise != "keep":
            raise DoubtfulValue(row.otherwise or f"not one of {', '.join(row.values)}")
        elif value is not None:
            value = CONVERSIONS[row.convert](value)
        if row.times or row.per:
            value = self._scale_value(row, value)
        several = dict(row.sets) or value
        if isinstance(several, dict) and (row.sets or not row.to):
            return {
                name: fill_references(new, value, self._find_value) for name, new in several.items()
            }
        if isinstance(value, dict) and row.convert != "mapping":
            section = row.to[0] if row.convert == "schedules" else ""
            return {
                f"{section}{name}": fill_references(new, value, self._find_value)
                for name, new in value.items()
            }
        option = next((name for name in row.to if self._spell_option(name) is not None), row.to[0])
        return {option: value}

    def _scale_value(self, row: KeyEntry, value: Any) -> Any:
        for key in row.times:
            value *= self._find_value(key) or 1
        for key in row.per:
            divisor = self._find_value(key) or 1
            if value % divisor:
                raise DoubtfulValue(f"{value} cannot be divided by {key}={divisor}")
            value //= divisor
        return value

    def _read_defaults(self) -> Iterator[ConvertedKey]:
        """Converts defaults that scale other keys of the file; records the other defaults."""
        for key, row in self.table.rows.items():
            default = self._default_of(row)
            if default is None or key in self.given:
                continue
            entry = self._judge_key(row, key, default)
            is_scaled = any(name in self.given for name in (*row.times, *row.per))
            if is_scaled or (row.adopt and entry.options):
                yield replace(self._convert_key(key, default), is_default=True)
                continue
            if entry.verdict is KeyVerdict.LOOK and not entry.options:
                yield replace(entry, is_default=True)
            for option, value in entry.options.items():
                if self._is_free(option) and option not in self.defaults:
                    self.defaults[option] = (key, value)

    def _default_of(self, row: KeyEntry) -> Any:
        if isinstance(row.default, dict):
            return row.default.get(self.kind, row.default.get(self.algorithm))
        return row.default

    def _find_value(self, key: str) -> Any:
        """The value of a key in the file, or the library's default."""
        if key == "algorithm":
            return self.algorithm
        if key in self.given:
            return self.given[key]
        row = self.table.rows.get(key)
        if row is None:
            return None
        return self._default_of(row)

    def _is_met(self, key: str, wanted: Any) -> bool:
        found = self._find_value(key)
        if isinstance(found, list):
            values = found
        else:
            values = [found]
        if isinstance(wanted, list):
            choices = wanted
        else:
            choices = [wanted]
        return any(value in choices or (choices == ["given"] and value) for value in values)

    def _spell_option(self, option: str) -> str | None:
        """The recipe's name of an option in the tables; None if the recipe does not have it."""
        if option == "algorithm":
            return None
        spellings = [option]
        for old, new in _SPELLINGS:
            if option.startswith(old):
                spellings.append(new + option.removeprefix(old))
        return next((name for name in spellings if name in self.known), None)

    def _is_free(self, option: str) -> bool:
        name = self._spell_option(option)
        return name is not None and name not in self.options

    def _put_option(self, option: str, value: Any, note: str) -> None:
        name = self._spell_option(option)
        assert name is not None, option
        self.options[name] = dict(value) if isinstance(value, dict) else value
        self.notes[name] = note

    def _check_requirements(self, entry: ConvertedKey) -> ConvertedKey:
        """Removes options whose required option is missing."""
        for option, value in entry.options.items():
            needed = self._find_missing(option, value)
            if needed is not None:
                self.options.pop(option, None)
                return replace(
                    entry,
                    verdict=KeyVerdict.LOOK,
                    options={},
                    sentence=f"{option} requires {needed}",
                )
        return entry

    def _find_missing(self, option: str, value: Any) -> str | None:
        """Returns the missing option that an option requires; None if nothing is missing."""
        for name, needed in load_ours()["requires"].items():
            other, _, wanted = needed.partition("=")
            if self._spell_option(name) not in (option, self._spell_option(option)) or (
                wanted and value in (1, False)
            ):
                continue
            spelled = self._spell_option(other) or other
            if spelled not in self.options or (
                wanted and spell_value(self.options[spelled]) != wanted
            ):
                return needed.replace(other, spelled)
        return None

    def _fill_required(self) -> Iterator[ConvertedKey]:
        """Sets required options that the file lacks to the library's default or a placeholder."""
        for name, placeholder in load_ours()["placeholders"].items():
            option = self._spell_option(name)
            if option is None or option in self.options:
                continue
            if any(key.startswith(tuple(placeholder.get("unless", ()))) for key in self.options):
                continue
            if option in self.defaults:
                key, value = self.defaults[option]
                self._put_option(option, value, f"their default of {key}")
                continue
            same = next(
                (name for name in placeholder.get("same_as", ()) if name in self.options), None
            )
            if same is not None:
                self._put_option(option, self.options[same], f"as {same}")
                continue
            value = placeholder["value"]
            self._put_option(option, value, f"placeholder: {placeholder['meaning']}")
            yield ConvertedKey(
                option,
                value,
                KeyVerdict.LOOK,
                {},
                f"missing, now a placeholder: {placeholder['meaning']}",
            )


def _list_bases(value: Any) -> list[str]:
    if isinstance(value, list):
        names = value
    else:
        names = [value]
    return [str(name).removesuffix(".yaml") for name in names if name != "_self_"]
