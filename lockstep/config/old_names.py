"""Keys of recipes that have another name now: the one table of them. Imports no torch.

A user's recipe with an old key is refused, with the new name. The recipe in a run's folder is translated, so that
`report`, `eval`, `export` and the like can read older runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.yaml12 import Keys


@dataclass(frozen=True)
class NewName:
    """The new name of a renamed key.

    Attributes:
        key: Its new dotted name; the options of a renamed section move along.
        also: Further options to set where the old key has a value, by dotted keys; an old null then sets nothing.
        values: New values by old ones, where values changed, too.
        is_read: False: the key is dropped from old recipes, since something else decides it now.
    """

    key: str
    also: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[Any, Any] = field(default_factory=dict)
    is_read: bool = True

    def describe(self, rest: Keys) -> str:
        """Says how to write now what the old key said, or the option `rest` within it."""
        others = " and ".join(f"{key}: {value}" for key, value in self.also.items())
        return f"it is {'.'.join((self.key, *rest))} now{f', with {others}' if others else ''}"


RENAMED = {
    "cluster.ray.placement": NewName("cluster.placement"),
    "data.arithmetic": NewName("data.task", {"data.task.name": "arithmetic"}),
    "data.letters": NewName("data.task", {"data.task.name": "letters"}),
    "judge.sampler.vllm.sleep": NewName("cluster.offload_idle", is_read=False),
    "meta_judge.sampler.vllm.sleep": NewName("cluster.offload_idle", is_read=False),
    "sampler.vllm.sleep": NewName("cluster.offload_idle", is_read=False),
    "self_rewarding.first_iteration_sft": NewName(
        "self_rewarding.first_iteration", values={True: {"algorithm": "sft"}, False: None}
    ),
}
"""The new name of each dotted old key."""


def find(keys: Keys) -> tuple[NewName, Keys] | None:
    """Finds the new name of an option or of the innermost renamed section around it, and the keys within that."""
    for length in range(len(keys), 0, -1):
        new = RENAMED.get(".".join(keys[:length]))
        if new is not None:
            return new, keys[length:]
    return None


def translate(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a recipe to today's keys."""
    renamed: dict[str, Any] = {}
    for keys, value in _leaves(tree, ()):
        found = find(keys)
        if found is None:
            _put(renamed, keys, value)
            continue
        new, rest = found
        if not new.is_read or (value is None and not rest and new.also):
            continue
        _put(renamed, (*new.key.split("."), *rest), new.values.get(value, value) if new.values else value)
        for key, addition in new.also.items():
            _put(renamed, tuple(key.split(".")), addition)
    return renamed


def _leaves(tree: Mapping[str, Any], above: Keys) -> Iterator[tuple[Keys, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _put(tree: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value
