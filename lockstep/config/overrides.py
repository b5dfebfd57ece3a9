"""Overrides on the command line, `key=value`. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lockstep.config.errors import RecipeError
from lockstep.config.recipe_files import RecipeLayer
from lockstep.core.errors import shorten_text
from lockstep.system import yaml12

_OVERRIDE = re.compile(rf"\+*(?P<key>\w+(\.\w+){{0,{yaml12.DEEPEST}}})=(?P<value>.*)", re.DOTALL)
_MISSPELLED = re.compile(r"-*(?P<key>\w[\w.]*)( *= *| )(?P<value>.+)", re.DOTALL)
"""An override with dashes, or with spaces around or for its equals sign."""
_FLAG = re.compile(r"(?<![^\0])(--[\w.]+)\0(?=[^\0=-][^\0=]*(\0|$))")
"""A flag before its value, in words joined by null characters."""


def parse_overrides(overrides: Sequence[str]) -> tuple[list[RecipeLayer], list[str]]:
    """Parses each override into a layer, so that errors can quote it; reports all invalid ones.

    Also returns a sentence for each one that is clear, but not written as `key=value`.
    """
    joined = "\0".join(overrides).replace("\0=\0", " = ")
    words = _FLAG.sub(r"\1 ", joined).split("\0") if overrides else []
    layers: dict[str, RecipeLayer] = {}
    wrong: list[str] = []
    misspelled: list[str] = []
    for text in words:
        meant = text
        loose = _MISSPELLED.fullmatch(text)
        if loose is not None and _OVERRIDE.fullmatch(text) is None:
            meant = f"{loose['key']}={loose['value']}"
        if meant != text and _OVERRIDE.fullmatch(meant) is not None:
            misspelled.append(f"override {shorten_text(text)}: write {meant}")
        try:
            key, value = _parse_override(meant)
        except ValueError as error:
            wrong.append(f"override {shorten_text(text)}: {error}")
        else:
            layers.pop(key, None)  # the last one wins, so that a script can append overrides
            layers[key] = RecipeLayer(
                f"override {shorten_text(text)}", yaml12.nest_value(key, value)
            )
    if wrong:
        raise RecipeError("\n".join([*wrong, *misspelled]))
    return list(layers.values()), misspelled


def _parse_override(text: str) -> tuple[str, Any]:
    """The key and the value of an override; raises ValueError if a part is missing."""
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        raise ValueError("write key=value with no dashes or spaces, such as seed=1")
    key = match["key"]
    value = match["value"]
    quoted = f"""quote it twice, as in {key}='"text"'"""
    if not value.strip():
        raise ValueError(f"missing value; write null to unset the option, or {quoted}")
    if re.search(r"(^|\s)#", value) and value.lstrip()[0] not in "\"'[{":
        raise ValueError(f"# starts a comment in YAML; {quoted}")
    try:
        return key, yaml12.parse_yaml(value)
    except ValueError as error:
        raise ValueError(f"{error}; {quoted}") from None
