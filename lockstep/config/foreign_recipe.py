"""Recipes converted from configs of other libraries: conversion, the order of options, and validation."""

from __future__ import annotations

from pathlib import Path

from lockstep import yaml12
from lockstep.config import registry
from lockstep.config.errors import Shape, list_options
from lockstep.config.loading import Loaded, load_options
from lockstep.config.recipe_files import Layer
from lockstep.errors import InputError
from lockstep.foreign.convert import Converted, translate
from lockstep.foreign.libraries import CONVERTIBLE, detect
from lockstep.foreign.read import read_config
from lockstep.foreign.words import flatten, spell


def convert_file(path: Path, library: str | None = None, algorithm: str | None = None) -> Converted:
    """Converts the config in a file.

    Args:
        path: The file.
        library: The library whose config it is, as `--from` names it; None: the one that has most of its keys.
        algorithm: The algorithm that it trains by; None: the one that the file names.

    Raises:
        InputError: The file cannot be read, or the library or the algorithm cannot be told from it.
    """
    read = read_config(path)
    try:
        source = detect(read.config) if library is None else CONVERTIBLE[library]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    found = algorithm or source.find_algorithm(source.with_defaults(read.config))
    if found is None:
        raise InputError(
            f"{path}: nothing in it says what is trained, or nothing here trains that way; say --algorithm, "
            "such as --algorithm grpo"
        )
    return translate(source, read.config, found, order_options(found), read.missing)


def order_options(algorithm: str) -> tuple[str, ...]:
    """All options of a recipe of an algorithm, in their order."""
    kind = registry.find(algorithm)
    assert kind is not None, algorithm
    return tuple(list_options(Shape(kind)))


def render(converted: Converted) -> str:
    """The recipe, as YAML."""
    return converted.render_recipe(order_options(converted.algorithm))


def describe_changes(converted: Converted, loaded: Loaded) -> str:
    """Names settings of theirs that the recipe does not reproduce, each with its option here; empty where all are."""
    changes = converted.list_changes()
    if not changes:
        return ""
    known = order_options(converted.algorithm)
    options = dict(flatten(loaded.dump()))
    told: list[str] = []
    for named, key in changes.items():
        option = next((option for option in spell(key or "") if option in known), None)
        told.append(named if option is None else f"{named} (here {option}: {options.get(option)})")
    return f"the recipe trains something else than theirs, until you decide on {'; '.join(told)}"


def validate(converted: Converted) -> Loaded:
    """Loads the recipe as `lockstep train` would.

    Raises:
        RecipeError: One sentence for each option that Lockstep refuses.
    """
    return load_options("converted", None, Layer("the converted recipe", yaml12.parse(render(converted))))
