"""Renders the recipe of a converted config as YAML, and the report on its keys."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.config.errors import RecipeError
from lockstep.config.loading import load_options
from lockstep.config.recipe_files import RecipeLayer
from lockstep.system import yaml12
from lockstep_convert.convert import ConvertedConfig, ConvertedKey, order_options
from lockstep_convert.read import flatten_tree
from lockstep_convert.table import DottedOptions, KeyVerdict
from lockstep_convert.values import shorten_value, spell_value


def render_recipe(converted: ConvertedConfig) -> str:
    """Renders the recipe as YAML; a comment gives the source of each option."""
    place = {option: i for i, option in enumerate(order_options(converted.algorithm))}
    tree: DottedOptions = {"algorithm": converted.algorithm}
    for option in sorted(converted.options, key=lambda option: place.get(option, len(place))):
        value = copy.deepcopy(converted.options[option])
        *sections, key = option.split(".")
        section = tree
        for name in sections:
            section = section.setdefault(name, {})
        if not (value == {} and section.get(key)):
            section[key] = value
    head = (
        f"# Converted from {converted.table.name} ({converted.table.version}) by `lockstep "
        "convert`.\n"
    )
    body = yaml12.annotate_yaml(tree, lambda keys: converted.notes.get(".".join(keys), ""))
    text = head + body
    for entry in converted.select_entries(KeyVerdict.LOOK):
        text += f"# Look at this: {_describe_entry(entry)}: {entry.sentence}.\n"
    return text


def check_recipe(converted: ConvertedConfig) -> tuple[Mapping[str, Any], str]:
    """Returns the resolved options of the recipe and its error; one of them is empty."""
    layer = RecipeLayer("the converted recipe", yaml12.parse_yaml(render_recipe(converted)))
    try:
        loaded = load_options("converted", None, layer)
    except RecipeError as error:
        return {}, str(error)
    return dict(flatten_tree(loaded.dump_options())), ""


def list_lines(converted: ConvertedConfig, resolved: Mapping[str, Any]) -> Iterator[str]:
    """Yields the report: the result for each key, and the library's defaults that differ from
    Lockstep's.
    """
    yield f"{converted.table.name} ({converted.table.version}) → algorithm: {converted.algorithm}"
    for remark in converted.remarks:
        yield f"note: {remark}"
    for verdict in KeyVerdict:
        entries = converted.select_entries(verdict)
        if entries:
            yield ""
            yield f"{verdict.value} ({len(entries)})"
            yield from _list_entries(entries)
    different = list(_list_defaults(converted, resolved))
    if different:
        yield ""
        yield "not set in your file"
        yield from different


def _list_entries(entries: list[ConvertedKey]) -> Iterator[str]:
    """Yields one line for each entry that sets options, and one for all other entries with the same
    sentence.
    """
    for entry in entries:
        if entry.options:
            ours = ", ".join(
                f"{option}: {shorten_value(option, value)}"
                for option, value in entry.options.items()
            )
            yield (
                f"  {_describe_entry(entry)} → "
                f"{ours}{f'  ({entry.sentence})' if entry.sentence else ''}"
            )
    by_sentence: dict[str, list[str]] = {}
    for entry in entries:
        if not entry.options:
            by_sentence.setdefault(entry.sentence, []).append(_describe_entry(entry))
    for sentence, names in by_sentence.items():
        yield f"  {'; '.join(names)}{f': {sentence}' if sentence else ''}"


def _list_defaults(converted: ConvertedConfig, resolved: Mapping[str, Any]) -> Iterator[str]:
    for option, (key, theirs) in converted.defaults.items():
        if option in converted.options:
            yield (
                f"  {option}: theirs is {spell_value(theirs)} ({key}), ours has no default: the "
                "recipe has theirs"
            )
        elif not resolved:
            yield (
                f"  {option}: theirs is {spell_value(theirs)} ({key}), ours is known when the "
                "recipe "
                "loads"
            )
        elif resolved.get(option) != theirs:
            yield (
                f"  {option}: theirs is {spell_value(theirs)} ({key}), ours is "
                f"{spell_value(resolved.get(option))}"
            )


def _describe_entry(entry: ConvertedKey) -> str:
    if entry.value is None:
        value = ""
    else:
        value = f" = {shorten_value(entry.theirs, entry.value)}"
    return f"{entry.theirs}{' (their default)' if entry.is_default else ''}{value}"
