"""Strategies of hostile files: what is in order, with values changed and bytes corrupted."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Keys = tuple[str | int, ...]

ODD_NUMBERS = st.sampled_from(
    [
        0,
        -1,
        1,
        2,
        3,
        7,
        2**31,
        2**63,
        10**30,
        0.0,
        -0.5,
        0.5,
        1.5,
        1e-320,
        1e300,
        float("inf"),
        float("nan"),
    ]
)
ODD_TEXTS = st.sampled_from(
    ["", " ", "null", "true", "~", "{", "}", "{}", "{0}", "{question}", "a.b", "../x", "/dev/null", "~nobody/x", "$NO",
     "math", "torch", "cuda", "float32", "\0", "\ud800", "\u202e", "é", "a" * 300, "1e5", "[", "rows.jsonl", "model"]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    ODD_NUMBERS,
    ODD_TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
"""Anything that JSON can say, and some that it cannot."""


def near(value: object) -> SearchStrategy[Any]:
    """Values of the same kind, most of which are in order."""
    match value:
        case bool():
            return st.booleans()
        case int():
            return st.one_of(
                st.integers(-1, 5),
                st.sampled_from([value, 2 * value, 10**6, 10**12, 2**63, 10**30]),
            )
        case float():
            return st.one_of(st.floats(0, 1), st.sampled_from([value, 1, 2.0, 1e-300, 1e300, -1.0]))
        case str():
            return st.one_of(ODD_TEXTS, st.sampled_from([value, value + " ", value.upper()]))
        case _:
            return st.sampled_from([value, None, {}, []])


def find_places(tree: object, above: Keys = ()) -> Iterator[Keys]:
    """Yields the keys of all values in mappings and lists, the outer before the inner."""
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield (*above, key)
        yield from find_places(value, (*above, key))


@st.composite
def spoiled(draw: st.DrawFn, tree: dict[str, Any], most: int = 3) -> Any:
    """A tree in which a few values are others, are gone, or have another name."""
    found = copy.deepcopy(tree)
    for _ in range(draw(st.integers(0, most))):
        places = list(find_places(found))
        if not places:
            break
        *above, key = draw(st.sampled_from(places))
        inside: Any = found
        for part in above:
            inside = inside[part]
        match draw(st.sampled_from(["set"] * 9 + ["remove", "rename", "add"])):
            case "set":
                inside[key] = draw(st.one_of(near(inside[key]), near(inside[key]), VALUES))
            case "remove":
                del inside[key]
            case "rename" if isinstance(inside, dict):
                inside[draw(st.text(max_size=8))] = inside.pop(key)
            case _ if isinstance(inside, dict):
                inside[draw(st.text(max_size=8))] = draw(VALUES)
            case _:
                inside.append(draw(VALUES))
    return found


@st.composite
def corrupted(draw: st.DrawFn, content: SearchStrategy[bytes]) -> bytes:
    """Bytes of which a few are others, are gone, or are put in."""
    found = bytearray(draw(content))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 3]))):
        at = draw(st.integers(0, len(found)))
        match draw(st.sampled_from(["insert", "cut", "end", "twice", "replace"])):
            case "insert":
                found[at:at] = draw(st.binary(max_size=4))
            case "cut":
                del found[at : at + draw(st.integers(1, 20))]
            case "end":
                del found[at:]
            case "twice":
                found += found[at:]
            case _:
                found[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
    return bytes(found)


def json_bytes(tree: object) -> bytes:
    """JSON as Python writes it, which has NaN, and half characters as escapes."""
    return json.dumps(tree).encode()


def texts_of(tree: SearchStrategy[Any]) -> SearchStrategy[bytes]:
    return tree.map(json_bytes)
