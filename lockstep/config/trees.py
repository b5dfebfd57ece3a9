"""What recipes say, as trees of options: laid over each other, looked through, asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.config.errors import KeyPath
from lockstep.yaml12 import Keys


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lays a tree over another, key by key; all that is no mapping is replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def list_values(tree: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """All that is no mapping, or an empty one, with its keys."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from list_values(value, (*above, key))
        else:
            yield (*above, key), value


def says(tree: Any, path: KeyPath) -> bool:
    """Whether a tree says the option at `path`, or a list that it stands in."""
    for key in path:
        if isinstance(tree, list) and isinstance(key, int):
            return True
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    return True
