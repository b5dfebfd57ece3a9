"""YAML as recipes mean it: the core schema of YAML 1.2 (§10.3), and nothing twice.

PyYAML reads YAML 1.1, in which `1e-5` is text, `no` is false, `12:30` is 750 and 010 is 8; and of two equal keys it
silently keeps the last. Here a number is what looks like one, only true and false are truth values, everything else
is text as written, and an equal key is an error. No tag is followed, so nothing but plain data can come out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from lockstep.errors import InputError

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(
    r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NOTES_WITHIN = 60  # columns; longer lines have their comment further to the right
Keys = tuple[str, ...]
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}


def parse(text: str) -> Any:
    """Reads one YAML document into dicts with text keys, lists, text, numbers, truth values and None.

    Raises:
        ValueError: One sentence with the line, where the text is no YAML, has a key twice or in no text, or has a tag.
    """
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        tab = "; indent with spaces" if "'\\t'" in str(error.problem) else ""
        raise InputError(f"{line}this is no YAML: {error.problem or error.context}{tab}") from None
    except yaml.YAMLError as error:
        raise InputError(f"this is no YAML: {error}") from None
    return None if node is None else _value(node)


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


def _value(node: yaml.Node) -> Any:
    if node.tag not in _PLAIN_TAGS:
        raise InputError(f"{_line(node)}the tag {node.tag} is not followed; leave it out")
    if isinstance(node, yaml.MappingNode):
        return _mapping(node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    assert isinstance(node, yaml.ScalarNode)
    return node.value if node.style else _plain(node.value)


def _mapping(node: yaml.MappingNode) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _value(key_node)
        if not isinstance(key, str):
            raise InputError(f"{_line(key_node)}a key must be text, but is {key!r}")
        if key in pairs:
            raise InputError(f"{_line(key_node)}the key {key} is given twice")
        pairs[key] = _value(value_node)
    return pairs


def _plain(text: str) -> Any:
    """A scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}: "
