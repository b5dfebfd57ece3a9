"""YAML of recipes: the core schema of YAML 1.2 (§10.3), and no key twice.

PyYAML reads YAML 1.1, in which `1e-5` is text, `no` is false, `12:30` is 750 and 010 is 8; and of two equal keys it
silently keeps the last. Here a number is what looks like one, only true and false are truth values, everything else
is text as written, and an equal key is an error. No tag is followed, so nothing but plain data can come out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from lockstep.core.errors import InputError

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(
    r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOTES_WITHIN = 60  # columns; longer lines have their comment further to the right
Keys = tuple[str, ...]
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
DEEPEST = 50
"""Most levels of mappings and lists; recipes have fewer than ten."""
_TOO_DEEP = f"this is nested more than {DEEPEST} deep, or an alias stands within itself"
_MOST_VALUES = 100_000
"""Most values of a document, those counted again that aliases repeat; recipes have a few hundred."""


def parse(text: str) -> Any:
    """Reads one YAML document into dicts with text keys, lists, text, numbers, truth values and None.

    Raises:
        ValueError: One sentence with the line, where the text is no YAML, has a key twice or in no text, has a tag, or
            is nested too deeply or repeated too often to be read.
    """
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        return None if node is None else _Reader().value(node)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(f"{line}this is no YAML of one document: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"line {line}: this is no YAML: it holds the character U+{error.character:04X}") from None
    except RecursionError:
        raise InputError(_TOO_DEEP) from None


def parse_or_text(text: str) -> Any:
    """The value of a word of a command line: as YAML reads it, or the text itself if it is not YAML."""
    try:
        return parse(text)
    except ValueError:
        return text


def lay_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one tree over another: mappings are merged key by key; any other value above replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = lay_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def value_at(tree: Any, path: Iterable[str]) -> Any:
    """The value at a path of keys in a tree of mappings; None where there is none."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def list_texts(tree: object, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Yields the texts in a tree, each with its keys; a text in a list has the list's."""
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


def nest(path: str, value: Any) -> Any:
    """The tree that has a value at a dotted path and nothing else."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def dump(tree: Any, width: float = 120) -> str:
    """Writes what `parse` reads back as the same values."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def annotate(tree: dict[str, Any], note: Callable[[Keys], str]) -> str:
    """Writes the same with a comment at the right of each option, aligned where the option is short.

    Args:
        tree: Mappings of mappings; anything else in them is an option.
        note: The comment of the option with these keys.
    """
    lines = list(_annotate_lines(tree, (), note))
    width = max((len(text) for text, comment in lines if comment and len(text) <= _NOTES_WITHIN), default=0)
    return "".join(f"{text:<{width}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines)


def _annotate_lines(tree: dict[str, Any], above: Keys, note: Callable[[Keys], str]) -> Iterator[tuple[str, str]]:
    """Lines, each with its comment; an option's stands on its first line, since no text of it is folded."""
    for key, value in tree.items():
        path, nested = (*above, key), isinstance(value, dict) and bool(value)
        first, *rest = dump({key: {} if nested else value}, float("inf")).splitlines()
        lines = [first.removesuffix(" {}")] if nested else [first, *rest]
        for i, line in enumerate(lines):
            yield "  " * len(above) + line, "" if nested or i else note(path)
        if nested:
            yield from _annotate_lines(value, path, note)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `parse` would read as a number, and keeps text with several lines on one."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"({_FLOAT.pattern})$"), list("-+.0123456789"))


class _Reader:
    """Reads the nodes of one document as plain values, and counts them: aliases make thousands of a few lines."""

    _count = 0

    def value(self, node: yaml.Node, depth: int = 0) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise InputError(f"{_line(node)}there are more than {_MOST_VALUES:,} values, aliases followed; say fewer")
        if depth > DEEPEST:
            raise InputError(f"{_line(node)}{_TOO_DEEP}")
        if node.tag not in _PLAIN_TAGS:
            raise InputError(f"{_line(node)}the tag {node.tag} is not followed; leave it out")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth + 1)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        assert isinstance(node, yaml.ScalarNode)
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.value(key_node, depth)
            if not isinstance(key, str):
                raise InputError(f"{_line(key_node)}a key must be text, but is {key!r}")
            if key == "<<" and not key_node.style:
                raise InputError(f"{_line(key_node)}mappings are not merged by <<; write its options out")
            if key in pairs:
                raise InputError(f"{_line(key_node)}the key {key} is given twice")
            pairs[key] = self.value(value_node, depth)
        return pairs


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if _SURROGATE.search(text):
        text = _join_surrogates(text, node)
    try:
        return text if node.style else _plain(text)
    except ValueError:
        raise InputError(f"{_line(node)}this is a number of {len(text):,} digits, more than can be read") from None


def _join_surrogates(text: str, node: yaml.Node) -> str:
    """Puts pairs together that JSON, which is YAML, escapes by halves; raises InputError for half a pair."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise InputError(
            f"{_line(node)}this escapes half a surrogate pair (as in \\ud83d alone), which is no text"
        ) from None


def _plain(text: str) -> Any:
    """A scalar without quotes; raises ValueError for a number of more digits than Python reads."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}: "


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by their whole key; a list is one value, and so is a section that says nothing."""
    if not isinstance(tree, dict) or not tree:
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
