"""Whether what was asked of a side took effect, by what it observed while it computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.doctor.backends.variants import TORCH_TYPES
from lockstep.doctor.base import Capability, Conditions, Part
from lockstep.doctor.case import Case, View
from lockstep.doctor.probes.base import SIDES

_MODULES: frozenset[Part] = frozenset(("head", "norm", "rope", "router"))
"""Parts that are modules of their own, which can be watched."""


def denied(before: Case, after: Case) -> str | None:
    """What a side observed that speaks against the conditions that it is put under; None: nothing."""
    for side in SIDES:
        view = after.side(side)
        if view.conditions == before.side(side).conditions:
            continue
        seen = dict(view.scores(after.scored(side)).effective)
        if side == "infer" and "prefix_hits" in after.drawn.sample:
            seen["prefix_hits"] = int(after.drawn["prefix_hits"].sum())
        if (said := against(view, view.conditions, seen)) is not None:
            return f"{side} was asked for {said}"
    return None


def against(view: View, asked: Conditions, seen: Mapping[str, Any]) -> str | None:
    """What was seen that is not what was asked for; what was not seen speaks against nothing.

    Args:
        view: Of the side.
        asked: What it was asked for; what it cannot do is not held against it.
        seen: `Scores.effective`.
    """
    dtype = None if asked.dtype is None else str(TORCH_TYPES[asked.dtype]).removeprefix("torch.")
    equals: Mapping[Capability, Any] = {"dtype": dtype, "layout": asked.layout, "kernel": asked.kernel}
    for name, value in equals.items():
        if value is not None and view.can(name) and seen.get(name, value) != value:
            return f"{name} {value}, and computed with {seen[name]}"
    if asked.batch_size is not None and view.can("batch_size") and seen.get("rows", 0) > asked.batch_size:
        return f"{asked.batch_size} sequences at a time, and computed {seen['rows']}"
    if missing := (asked.parts & _MODULES) - seen.get("parts", asked.parts):
        return f"fp32 in {', '.join(sorted(missing))}, and no such module computed in fp32"
    if asked.evaluation and seen.get("training"):
        return "evaluation mode, and was in training mode"
    if asked.fresh and seen.get("prefix_hits"):
        return f"no caches, and read {seen['prefix_hits']} tokens from one"
    if asked.unchunked and not seen.get("unchunked", True):
        return "prompts read whole, and read them in parts"
    return None
