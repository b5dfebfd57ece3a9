"""YAML of recipes: the core schema of YAML 1.2 (§10.3), without repeated keys.

PyYAML reads YAML 1.1, in which `1e-5` is text, `no` is false, `12:30` is 750 and 010 is 8; it also
silently keeps the last of two equal keys. Here, text that looks like a number is a number, only
true and false are truth values, everything else is text as written, and an equal key is an error.
Tags and aliases are refused, so the result is plain data, no larger than the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from lockstep.core.errors import InputError

_FLOAT = re.compile(
    r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
)
_PLAIN = {
    "null": re.compile(r"(~|null|Null|NULL|)$"),
    "bool": re.compile(r"(true|True|TRUE|false|False|FALSE)$"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)$"),
    "float": _FLOAT,
}
"""Unquoted texts that are not strings, by their YAML kind."""
_NOTES_WITHIN = 60  # columns; comments of longer lines are further to the right
YAMLKeys = tuple[str, ...]
DEEPEST = 50
"""Maximum number of parts in a dotted key; recipes have fewer than ten."""


def parse_yaml(text: str, aliases: int = 0) -> Any:
    """Parses one YAML document into dicts, lists, text, numbers, truth values and None.

    Args:
        text: The document.
        aliases: Number of aliases that it may have; with some, `<<` merges mappings.

    Raises:
        ValueError: One sentence with the line, if the text is not YAML, has a repeated or non-text
            key, a tag or too many aliases, or is nested too deeply.
    """
    try:
        loader = _RecipeLoader(text)
        loader.aliases = aliases
        return loader.get_single_data()
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(
            f"{line}invalid YAML (must be one document): {error.problem or error.context}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"line {line}: invalid YAML: character U+{error.character:04X}") from None
    except RecursionError:
        raise InputError("the YAML is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"invalid number: {error}") from None


def parse_or_text(text: str) -> Any:
    """The value of a command-line word: parsed as YAML, or the text itself if it is not YAML."""
    try:
        return parse_yaml(text)
    except ValueError:
        return text


def merge_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merges one tree over another key by key; any other value above replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = (
            merge_over(under, value)
            if isinstance(under, dict) and isinstance(value, dict)
            else value
        )
    return merged


def find_value(tree: Any, path: Iterable[str]) -> Any:
    """The value at a path of keys in a tree of mappings; None if missing."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def list_texts(tree: object, keys: YAMLKeys = ()) -> Iterator[tuple[YAMLKeys, str]]:
    """Yields the texts in a tree with their keys; a text in a list has the list's keys."""
    match tree:
        case str():
            yield keys, tree
        case dict():
            for key, inner in tree.items():
                yield from list_texts(inner, (*keys, key))
        case list():
            for inner in tree:
                yield from list_texts(inner, keys)
        case _:
            pass


def nest_value(path: str, value: Any) -> Any:
    """A tree with only one value, at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def dump_yaml(tree: Any, width: float = 120) -> str:
    """Writes YAML that `parse_yaml` reads back as the same values."""
    return yaml.dump(tree, Dumper=_RecipeDumper, sort_keys=False, allow_unicode=True, width=width)


def annotate_yaml(tree: dict[str, Any], note: Callable[[YAMLKeys], str]) -> str:
    """Writes YAML like `dump`, with a comment after each option, aligned if the option is short.

    Args:
        tree: Mappings of mappings; anything else in them is an option.
        note: The comment for the option or mapping with these keys.
    """
    lines = list(_annotate_lines(tree, (), note))
    width = max(
        (len(text) for text, comment in lines if comment and len(text) <= _NOTES_WITHIN), default=0
    )
    return "".join(
        f"{text:<{width}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines
    )


def _annotate_lines(
    tree: dict[str, Any], above: YAMLKeys, note: Callable[[YAMLKeys], str]
) -> Iterator[tuple[str, str]]:
    """Lines with their comments; an option's comment is on its first line.

    No text is folded.
    """
    for key, value in tree.items():
        path = (*above, key)
        nested = isinstance(value, dict) and bool(value)
        first, *rest = dump_yaml({key: {} if nested else value}, float("inf")).splitlines()
        lines = [first.removesuffix(" {}")] if nested else [first, *rest]
        for i, line in enumerate(lines):
            yield "  " * len(above) + line, "" if i else note(path)
        if nested:
            yield from _annotate_lines(value, path, note)


class _RecipeDumper(yaml.SafeDumper):
    """Quotes text that `parse_yaml` would read as a number, and keeps multi-line text on one
    line.
    """

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_RecipeDumper.add_representer(str, _RecipeDumper.represent_text)
_RecipeDumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


class _RecipeLoader(yaml.SafeLoader):
    """Loader of plain data; `aliases` is the number of aliases still allowed."""

    aliases = 0
    merges = False

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (of YAML 1.1, which are not wanted)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            anchored = self.anchors.get(event.anchor)
            if not self.aliases or (anchored is not None and anchored.end_mark is None):
                raise InputError(
                    f"line {event.start_mark.line + 1}: YAML aliases are not supported; write out "
                    "the value"
                )
            self.aliases -= 1
            self.merges = True
        elif event.tag is not None:
            raise InputError(
                f"line {event.start_mark.line + 1}: the tag {event.tag} is not supported; remove it"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:
        pairs: dict[Hashable, Any] = {}
        for key_node, value_node in self._merge_pairs(node):
            key = self.construct_object(key_node, deep=True)
            line = f"line {key_node.start_mark.line + 1}: "
            if not isinstance(key, str):
                raise InputError(f"{line}a key must be text, but is {key!r}")
            if key in pairs:
                raise InputError(f"{line}the key {key} is duplicated")
            pairs[key] = self.construct_object(value_node, deep=deep)
        return pairs

    def _merge_pairs(self, node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
        """The pairs of a mapping, then the pairs merged by `<<` whose keys it lacks."""
        pairs: list[tuple[yaml.Node, yaml.Node]] = []
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if self.merges and key.value == "<<" and isinstance(value, yaml.MappingNode):
                merged.append(value)
            else:
                pairs.append((key, value))
        own = {key.value for key, _ in pairs}
        for other in merged:
            pairs += [pair for pair in self._merge_pairs(other) if pair[0].value not in own]
        return pairs


for _kind, _pattern in _PLAIN.items():
    _RecipeLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, None)


def flatten_tree(tree: Any, above: YAMLKeys = ()) -> Iterator[tuple[YAMLKeys, Any]]:
    """Options by their keys; a list is one value, and so is an empty section."""
    if not isinstance(tree, dict) or not tree:
        yield above, tree
        return
    for key, value in tree.items():
        yield from flatten_tree(value, (*above, key))
