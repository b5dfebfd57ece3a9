"""Standard JSON from other programs; Python's parser also takes NaN, 1e999 and repeated keys."""

from __future__ import annotations

import json
import math
from typing import Any

_LONGEST_SHOWN = 40


class StrictJsonError(ValueError):
    """Text that only resembles JSON; the message is a predicate, such as "holds NaN, which …"."""


def refuse_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object; raises StrictJsonError for a repeated key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise StrictJsonError(
            f"has the key {json.dumps(twice, ensure_ascii=False)} twice in one object"
        )
    return found


def refuse_constant(text: str) -> Any:
    """Raises StrictJsonError for a number that is not finite."""
    shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    raise StrictJsonError(f"holds {shown}, which is not a finite number")


def read_float(text: str) -> float:
    """Reads a number; raises StrictJsonError if it overflows a float."""
    number = float(text)
    if math.isfinite(number):
        return number
    return refuse_constant(text)


HOOKS: dict[str, Any] = {
    "object_pairs_hook": refuse_repeated_key,
    "parse_constant": refuse_constant,
    "parse_float": read_float,
}
"""Arguments for Python's parser."""
