"""The probe that looks inside: which module, or what code between modules, does another thing with the same inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.base import Conditions, Network, Side
from lockstep.doctor.case import Case, View
from lockstep.doctor.causes import CAUSES
from lockstep.doctor.probes.base import SIDES, Clean, Finding, Outcome, Probe, Skipped
from lockstep.doctor.probes.tokens import farther
from lockstep.doctor.tracing import Local, Node, Trace, compared, patched, traced
from lockstep.models.heads import PLAIN

_EXACT = Conditions(dtype="fp32", layout="alone")
_LOOSE = 5e-5
"""Relative error of a node in fp32, from which on it does another thing, and does not only round otherwise."""

_PLACES: tuple[tuple[str, str], ...] = (
    (r"rotary_emb:out$", "rope"),
    (r"embed_tokens:out$", "embedding"),
    (r"\.0\.input_layernorm:in$", "embedding"),
    (r"norm:out$", "norm_eps"),
    (r"[qkv]_proj:out$", "projection"),
    (r"(o_proj|attn\.dense|c_proj):in$", "attention"),
    (r"(act_fn:out|act:out|down_proj:in)$", "activation"),
    (r"(gate|router):out$", "routing"),
    (r"lm_head:out$", "head"),
    (r"^logits$", "softcap"),
)


@dataclass(frozen=True)
class Swap:
    """A correction: what it adds to a side's numbers to give nodes of some kinds the values of the other side.

    Attributes:
        keeper: The other side.
        kinds: See `kind`.
    """

    keeper: View
    kinds: frozenset[str]

    def __call__(self, view: View, batch: Batch) -> Tensor:
        column = torch.zeros(batch.tokens.numel(), dtype=torch.float64)
        parts, sampling = [], batch.sampling or PLAIN
        with self.keeper.holding(), view.holding():
            right, own = (one.backend.network(one.conditions.but(_EXACT)) for one in (self.keeper, view))
            for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
                at = mask.nonzero().squeeze(-1)
                both = (self.mended(traced(right, tokens), own, tokens), own.logits(tokens))
                now, then = (token_scores(x[at - 1].float(), tokens[at], sampling)[0].double() for x in both)
                parts.append(now - then)
        column[batch.mask] = torch.cat(parts)
        return column

    def mended(self, trace: Trace, own: Network, tokens_T: Tensor) -> Tensor:
        """Logits [T, V]."""
        if kind("logits") in self.kinds:
            return trace.seen["logits"]
        return patched(trace, own, tokens_T, lambda node: kind(node) in self.kinds)


def layers(case: Case, refused: Sequence[str]) -> Outcome:
    """Which part of the network gives something else, in fp32, for the same inputs."""
    if not all(case.side(side).can("modules", "dtype") for side in SIDES):
        return Skipped("a side shows no modules, or cannot compute in fp32")
    done = {
        kind for side in SIDES for one in case.side(side).corrections if isinstance(one, Swap) for kind in one.kinds
    }
    longest = max(case.drawn.sequences(), key=len)
    with case.train.holding(), case.infer.holding():
        right, own = (case.side(side).backend.network(case.side(side).conditions.but(_EXACT)) for side in SIDES)
        trace = traced(right, longest)
        found = [local for local in compared(trace, own, longest) if local.error > _LOOSE]
        found = [local for local in found if kind(local.node) not in done]
        causes = {local.node: _cause(local, trace, own, longest) for local in found}
    found = [local for local in found if causes[local.node] not in refused]
    if not found:
        return Clean(f"every module gives the same for the same inputs, to a part in {1 / _LOOSE:.0f}")
    worst = max(found, key=lambda local: local.error)
    return _finding(case, worst, causes[worst.node], [local for local in found if kind(local.node) == kind(worst.node)])


def _finding(case: Case, worst: Local, cause: str, alike: Sequence[Local]) -> Finding:
    side = _wrong_side(case, worst.node)
    said = [f"{worst.node} differs by {worst.error:.2g} of its size for the same inputs"]
    said += [f"so do {len(alike) - 1} more of its kind"] if len(alike) > 1 else []
    said += [f"from position {worst.first} on"] if worst.first > 1 else []
    wrong: Side = side or "infer"

    def counter(case: Case) -> Case:
        view, keeper = case.side(wrong), case.side("train" if wrong == "infer" else "infer")
        before = [one for one in view.corrections if isinstance(one, Swap)]
        kinds = frozenset((kind(worst.node),)).union(*(one.kinds for one in before))
        others = tuple(one for one in view.corrections if not isinstance(one, Swap))
        return case.with_side(wrong, replace(view, corrections=(*others, Swap(keeper, kinds))))

    return Finding(cause, side, tuple(said), f"give what {kind(worst.node)} computes the other side's values", counter)


def kind(node: Node) -> str:
    """What sort of thing a node is, whatever its layer."""
    return next((place for pattern, place in _PLACES if re.search(pattern, node)), re.sub(r"\.\d+\.", ".", node))


def _cause(local: Local, trace: Trace, own: Network, tokens_T: Tensor) -> str:
    """What a node that differs stands for."""
    place = kind(local.node)
    if place == "rope":
        other = traced(own, tokens_T).positions
        same = trace.positions is None or other is None or torch.equal(trace.positions, other)
        return "rope" if same else "packed_positions"
    if place == "attention" and local.first > 1:
        return "sliding_window"
    if place == "projection":
        return "bias" if local.constant else "stale_tensor"
    return {"head": "head_precision"}.get(place, place if place in CAUSES else "stale_tensor")


def _wrong_side(case: Case, node: Node) -> Side | None:
    """The side whose node is not the witness's, for the witness's inputs."""
    tokens = max(case.drawn.sequences(), key=len)
    trace = traced(case.witness.network(), tokens)
    errors: dict[Side, float] = {}
    for side in SIDES:
        view = case.side(side)
        with view.holding():
            locals_ = compared(trace, view.backend.network(view.conditions.but(_EXACT)), tokens)
        errors[side] = max((local.error for local in locals_ if local.node == node), default=0.0)
    wrong = max(SIDES, key=lambda side: errors[side])
    return wrong if errors[wrong] > _LOOSE > min(errors.values()) else farther(case)


def divergence(case: Case) -> list[Local]:
    """Every node in order, for the picture: how the inference side differs given the training side's inputs."""
    if not all(case.side(side).can("modules") for side in SIDES):
        return []
    tokens = max(case.drawn.sequences(), key=len)
    with case.train.holding(), case.infer.holding():
        right, own = (case.side(side).backend.network(case.side(side).conditions) for side in SIDES)
        return compared(traced(right, tokens), own, tokens)


LAYERS = Probe("layer by layer", layers)
