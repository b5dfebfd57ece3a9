"""Messages about errors in a recipe: the full name of the option, and a valid value.

Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from lockstep.config import Section, other_libraries, registry
from lockstep.core.errors import InputError
from lockstep.system import yaml12
from lockstep.system.yaml12 import YAMLKeys

KeyPath = Sequence[int | str]
"""Path from the top of a recipe to an option: keys, and indices into lists."""

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a mapping of options",
    "string_type": "text",
    "too_short": "a longer list",
    "tuple_type": "a list",
}


class RecipeError(InputError):
    """A recipe or an override is invalid.

    The message has one sentence per line: the option, the error, and how to fix it.
    """


def find_section_class(annotation: Any) -> type[Section] | None:
    """The section class that a field of this type holds: directly, optionally, or as list items."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(
        (section for section in map(find_section_class, get_args(annotation)) if section), None
    )


@dataclass(frozen=True)
class RecipeShape:
    """The options that a recipe can have: those of its class and of the classes that it names.

    Attributes:
        kind: Class of the recipe, or of a section in it.
        value: Value of the section in the recipe, of any type.
        is_named: Whether this is a mapping of sections of this class, with names from the recipe.
    """

    kind: type[Section]
    value: object = None
    is_named: bool = False

    @property
    def option_fields(self) -> dict[str, FieldInfo]:
        """The options by name."""
        if self.is_named:
            return {}
        return self.kind.model_fields

    def iterate_options(self) -> Iterator[tuple[str, RecipeShape | None]]:
        """Yields the name of each option, and its shape if it is a section; NAME means any name."""
        if self.is_named:
            if isinstance(self.value, dict) and self.value:
                names = self.value
            else:
                names = ["NAME"]
        else:
            names = self.option_fields
        for name in names:
            yield name, self.find_section(name)

    def walk_options(
        self, above: YAMLKeys = ()
    ) -> Iterator[tuple[YAMLKeys, type[Section], RecipeShape | None]]:
        """Yields the keys of all options, each with its parent section and its own shape.

        The shape is None unless the option is a section.
        """
        for name, inner in self.iterate_options():
            if not self.is_named:
                yield (*above, name), self.kind, inner
            if inner is not None:
                yield from inner.walk_options((*above, name))

    def find_section(self, name: str) -> RecipeShape | None:
        """The shape of a section by its name; None if the option is not a section."""
        value = self.value.get(name) if isinstance(self.value, dict) else None
        if self.is_named:
            return RecipeShape(self.kind.narrow_class(value), value)
        if name in self.option_fields:
            section = find_section_class(self.option_fields[name].annotation)
        else:
            section = None
        if section is None:
            return None
        is_named = _maps_names(self.option_fields[name].annotation)
        return RecipeShape(section if is_named else section.narrow_class(value), value, is_named)


def _maps_names(annotation: Any) -> bool:
    """True for a type that is, or may be, a mapping from names to sections."""
    return get_origin(annotation) is dict or any(map(_maps_names, get_args(annotation)))


def algorithm_sentence(tree: dict[str, Any]) -> str:
    """Describes a missing or unknown `algorithm` of a recipe."""
    given = tree.get("algorithm")
    convert = "`lockstep convert FILE --out RECIPE` converts a config of another library"
    if given is None and "defaults" in tree:
        return f"unknown option defaults; set base to the recipe to start from; {convert}"
    if isinstance(given, dict):
        return f"algorithm is a mapping, but should be a name such as grpo; {convert}"
    found = "is missing" if given is None else f"is {format_value(given)}"
    return (
        f"algorithm {found}; choose one of: {', '.join(registry.list_algorithms())}, or name your "
        "own as "
        "file.py:Class or package.module:Class"
    )


def describe_problems(
    problems: Iterable[ErrorDetails], recipe: RecipeShape
) -> Iterator[tuple[KeyPath, str]]:
    """Yields the path of each invalid value and a sentence about it; a union has one sentence."""
    for path, found in groupby(problems, lambda problem: _find_place(problem, recipe.value)):
        own = list(found)
        of_union = all(len(problem["loc"]) > len(path) for problem in own)
        for group in [own] if of_union else [[problem] for problem in own]:
            if group[0]["type"] == "extra_forbidden":
                yield from _describe_unknown(path, group[0]["input"], recipe)
                continue
            yield path, _describe_problem(group, path, recipe)


def _describe_unknown(
    path: KeyPath, value: object, recipe: RecipeShape
) -> Iterator[tuple[KeyPath, str]]:
    """Yields a problem for each key of another library in an unknown option, or one for all."""
    known = list(list_options(recipe))
    leaves = [keys for keys, _ in yaml12.flatten_tree(value, tuple(map(str, path)))]
    foreign = [keys for keys in leaves if other_libraries.explain_key(keys, known)]
    # the innermost option, if each unknown section has one option, as in an override
    for keys in foreign or (leaves if len(leaves) == 1 else [path]):
        name = ".".join(map(str, keys)) or repr("")
        yield keys, f"unknown option {name}; {suggest_option(recipe, keys)}"


def _describe_problem(problems: Sequence[ErrorDetails], path: KeyPath, recipe: RecipeShape) -> str:
    """Describes the validation error at `path`; a union has at least one problem per type."""
    key = ".".join(map(str, path))
    broken_rules = [problem for problem in problems if problem["type"] == "value_error"]
    first = [*broken_rules, *problems][0]
    match first["type"]:
        case "missing":
            about = _describe_option(recipe, path)
            return f"{key} is missing" + (f" ({about})" if about else "")
        case "value_error":
            text = first["msg"].removeprefix("Value error, ")
            if key:
                return f"{key}: {text}"
            return text
        case kind if kind not in _EXPECTED and not first["msg"].startswith("Input should be "):
            return f"{key}: {first['msg']}"
        case _:
            pass
    if key == "algorithm":
        return algorithm_sentence({key: first["input"]})
    value = min(problems, key=lambda problem: len(problem["loc"]))["input"]
    depth = len(path) + 1
    expected: list[str] = []
    for problem in problems:
        kind = _EXPECTED.get(problem["type"], problem["msg"].removeprefix("Input should be "))
        if len(problem["loc"]) > depth:
            kind = f"a list of {kind}"
        expected.append(kind)
    *others, last = dict.fromkeys(expected)
    sentence = (
        f"{key} is {format_value(value)}, but should be "
        f"{' or '.join(filter(None, (', '.join(others), last)))}"
    )
    about = _describe_option(recipe, path)
    if about and isinstance(value, str) and "a list" in expected:
        sentence += f" ({about})"
    if "a mapping of options" in expected:
        named = _find_option_for(_find_fields(recipe, path), value)
        sentence += f", such as {key}.{named}={json.dumps(value)}" if named else ""
    if len(problems) == 1 and first["type"] == "string_type":
        sentence += f"""; quote text that YAML would parse as another type: {key}='"…"'"""
    return sentence


def _describe_option(recipe: RecipeShape, path: KeyPath) -> str | None:
    field = _find_fields(recipe, path[:-1]).get(str(path[-1]))
    return None if field is None else field.description


def _find_option_for(fields: dict[str, FieldInfo], value: object) -> str | None:
    """The first of these options whose type fits a value."""
    for name, field in fields.items():
        with suppress(ValidationError):
            TypeAdapter[object](field.annotation or object).validate_python(value, strict=True)
            return name
    return None


def _find_place(problem: ErrorDetails, tree: object) -> KeyPath:
    """The existing part of a problem's path in the recipe.

    For a union, pydantic appends the type that failed.
    """
    path = problem["loc"]
    if problem["type"] in ("missing", "extra_forbidden"):
        return path
    for depth, key in enumerate(path):
        match tree:
            case dict() if key in tree:
                tree = tree[key]
            case list() if isinstance(key, int):
                tree = tree[key]
            case _:
                return path[:depth]
    return path


def format_value(value: Any) -> str:
    """Formats a value for messages; a mapping or a list is only named as such."""
    match value:
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return json.dumps(value, ensure_ascii=False)


def suggest_option(recipe: RecipeShape, path: KeyPath) -> str:
    """Suggests an option with a similar name, or with the same name in another section."""
    *parents, wrong = map(str, path)
    everywhere = list(list_options(recipe))
    foreign = other_libraries.explain_key([*parents, wrong], everywhere)
    if foreign is not None:
        return foreign
    if "." in wrong.strip("."):
        first, _, rest = ".".join([*parents, wrong]).rpartition(".")
        return f"nest options in their section: {first}: {{{rest}: …}}"
    if ":" in wrong:
        return "put a space after each colon, as in {key: value}"
    siblings = _find_fields(recipe, path[:-1])
    if not siblings:
        parents = []
        siblings = recipe.option_fields
    near = get_close_matches(wrong, siblings, 1)
    near = near or [name for name in siblings if name.startswith(wrong)]
    meant = [".".join([*parents, name]) for name in near]
    meant = meant or _find_elsewhere(recipe, wrong)
    absence = None if meant else other_libraries.explain_absence([*parents, wrong])
    if absence is not None:
        return absence
    meant = meant or get_close_matches(".".join([*parents, wrong]), everywhere, 1)
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    return f"{'.'.join(parents) or 'this recipe'} has: {', '.join(siblings)}"


def _find_elsewhere(recipe: RecipeShape, word: str) -> list[str]:
    """The outermost options with this name; otherwise those whose names end with it, described."""
    found = dict[tuple[int, bool], list[str]]()
    for keys, section, _ in recipe.walk_options():
        about = "" if keys[-1] == word else f" ({section.model_fields[keys[-1]].description})"
        if f"_{keys[-1]}".endswith(f"_{word}"):
            found.setdefault((len(keys), bool(about)), []).append(".".join(keys) + about)
    return found[min(found)] if found else []


def _find_fields(shape: RecipeShape | None, path: KeyPath) -> dict[str, FieldInfo]:
    """The options of the section at `path`; empty if it is not a section."""
    for key in path:
        if shape is not None and isinstance(key, str):
            shape = shape.find_section(key)
    if shape:
        return shape.option_fields
    return {}


def list_options(recipe: RecipeShape) -> Iterator[str]:
    """Yields the dotted keys of all options, sections before their contents."""
    return (".".join(keys) for keys, _, _ in recipe.walk_options())
