"""Replies of servers and of judges, and logs of runs, that are nearly right."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from reply_cases import completed

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.sampled_from([0, 1, 4, 5, -1, 10**400]),
    st.floats(),
    st.text(alphabet=st.characters(), max_size=8),
    st.sampled_from(["", "\ud800", "\x1b[2J", "NaN", "Infinity", "4", "length", "stop"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=6,
)


def places(tree: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in a tree of JSON."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [above, *(place for key, value in inner for place in places(value, (*above, key)))]


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """A tree of JSON of which one to three values are others, or gone."""
    whole = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = draw(st.sampled_from(places(whole)[1:] or [("",)]))
        *above, last = place
        holder: Any = whole
        for key in above:
            holder = holder[key]
        if draw(st.booleans()) or not isinstance(holder, dict | list) or not holder:
            if isinstance(holder, dict) or (isinstance(holder, list) and last < len(holder)):
                holder[last] = draw(VALUES)
        else:
            del holder[last]
    return whole


def changed_answers() -> st.SearchStrategy[Any]:
    """Answers to a request, nearly right."""
    logged = completed(logprobs={"token_logprobs": [-1.0, -1.0, -1.0, -1.0], "tokens": ["token_id:2"]})
    return st.one_of(changed(completed()), changed(logged), VALUES)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes of which some are others, gone, said twice, or cut off."""
    for _ in range(draw(st.integers(1, 3))):
        at, to = sorted(draw(st.lists(st.integers(0, len(content)), min_size=2, max_size=2)))
        way = draw(st.sampled_from(["cut", "drop", "twice", "other", "insert"]))
        middle = {"drop": b"", "twice": content[at:to] * 2, "other": draw(st.binary(max_size=8))}
        if way == "cut":
            content = content[:at]
        elif way == "insert":
            content = content[:at] + draw(st.binary(max_size=8)) + content[at:]
        else:
            content = content[:at] + middle[way] + content[to:]
    return content


def damaged_bytes() -> st.SearchStrategy[bytes]:
    """An answer as it goes over the wire, damaged."""
    body = json.dumps(completed()).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return st.one_of(damaged(head + body), damaged(chunks))
