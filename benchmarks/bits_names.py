"""Names that have changed since the baseline of `make bits`, old → new: the one place where renames
are told to it.

They are applied to recipes before HEAD runs them, and to what the baseline measured before it is
compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

RECIPE_KEYS: dict[str, str] = {}
"""Dotted keys of recipes; a section takes along what stands in it, unless that has an entry of its
own.
"""

METRICS: dict[str, str] = {"refit/": "weight_sync/"}
"""Names in metrics.jsonl; one that ends with / takes along all metrics that begin with it."""

GONE_METRICS = ()
"""Metrics of the baseline that are measured no more."""

COLUMNS: dict[str, str] = {
    "judgements": "judgments",
    "chosen_judgements": "chosen_judgments",
    "rejected_judgements": "rejected_judgments",
}
"""Keys of samples.jsonl, of other files of answers, and of results.json (its metrics, too),
wherever they stand in a row.
"""

ROW_FILES = {"judgements.jsonl": "judgments.jsonl"}
"""Files of rows."""

GONE_COLUMNS = ()
"""Keys of rows of the baseline that are written no more."""

TENSORS: dict[str, str] = {}
"""Tensors, as `make bits` tells them (`checkpoint/critic/model.safetensors:name`); likewise with /
at the end.
"""

Value = TypeVar("Value")


def rename_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The same recipe with the keys of today."""
    renamed: dict[str, Any] = {}
    for key, value in _leaves(recipe):
        put(renamed, _rename_key(key), value)
    return renamed


def rename_metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same metrics under the names of today."""
    return {
        _rename_path(name, METRICS): value
        for name, value in row.items()
        if name not in GONE_METRICS
    }


def rename_tensors(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """The same tensors under the names of today."""
    return {_rename_path(name, TENSORS): value for name, value in tensors.items()}


def rename_columns(value: Any) -> Any:
    """The same row under the keys of today, at any depth."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in GONE_COLUMNS}
        return {COLUMNS.get(key, key): rename_columns(item) for key, item in kept.items()}
    return [rename_columns(item) for item in value] if isinstance(value, list) else value


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key, and makes the sections that it stands in."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value


def _leaves(tree: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        dotted = f"{above}{key}"
        found += (
            _leaves(value, f"{dotted}.") if isinstance(value, dict) and value else [(dotted, value)]
        )
    return found


def _rename_key(key: str) -> str:
    parts = key.split(".")
    for length in range(len(parts), 0, -1):  # the longest that is listed counts
        section = ".".join(parts[:length])
        if section in RECIPE_KEYS:
            return ".".join([RECIPE_KEYS[section], *parts[length:]])
    return key


def _rename_path(name: str, names: Mapping[str, str]) -> str:
    if name in names:
        return names[name]
    beginnings = [old for old in names if old.endswith("/") and name.startswith(old)]
    longest = max(beginnings, key=len, default="")
    return f"{names[longest]}{name.removeprefix(longest)}" if longest else name
