"""The probe that looks inside: which module, or what code between modules, does another thing with the same inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.base import Conditions, Network, Side
from lockstep.doctor.case import Case, View
from lockstep.doctor.probes.base import SIDES, Clean, Finding, Outcome, Probe, Skipped
from lockstep.doctor.probes.tokens import farther
from lockstep.doctor.tracing import Local, Node, Trace, compared, patched, traced
from lockstep.models.heads import PLAIN

_EXACT = Conditions(dtype="fp32", layout="alone")
_LOOSE = 1e-3
"""Relative error of a node in fp32, from which on it does another thing, and does not only round otherwise."""

_PLACES: tuple[tuple[str, str], ...] = (
    (r"rotary_emb:out$", "rope"),
    (r"embed_tokens:out$", "embedding"),
    (r"\.0\.input_layernorm:in$", "embedding"),
    (r"norm:out$", "norm_eps"),
    (r"[qkv]_proj:out$", "operator"),
    (r"(o_proj|attn\.dense|c_proj):in$", "attention"),
    (r"(act_fn:out|act:out|down_proj:in)$", "activation"),
    (r"(gate|router):out$", "routing"),
    (r"lm_head:out$", "head"),
    (r"^logits$", "softcap"),
)


def layers(case: Case, refused: Sequence[str]) -> Outcome:
    """Which part of the network gives something else, in fp32, for the same inputs."""
    if not all(case.side(side).can("modules", "dtype") for side in SIDES):
        return Skipped("a side shows no modules, or cannot compute in fp32")
    with case.train.holding(), case.infer.holding():
        right, own = (case.side(side).backend.network(case.side(side).conditions.but(_EXACT)) for side in SIDES)
        sequences = [tokens for tokens in case.drawn.sequences() if len(tokens) > 1]
        longest = max(sequences, key=len)
        trace = traced(right, longest)
        found = [local for local in compared(trace, own, longest) if local.error > _LOOSE]
    causes = [(local, cause) for local in found if (cause := _cause(local, trace, own, longest)) not in refused]
    if not causes:
        return Clean(f"every module gives the same for the same inputs, to a part in {1 / _LOOSE:.0f}")
    return _finding(case, *max(causes, key=lambda one: one[0].error), [local for local, _ in causes])


def _finding(case: Case, worst: Local, cause: str, found: Sequence[Local]) -> Finding:
    pattern = re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(worst.node))
    alike = [local for local in found if re.fullmatch(pattern, local.node)]
    side = _wrong_side(case, worst.node)
    said = f"{worst.node} differs by {worst.error:.2g} of its size for the same inputs"
    more = (f"so do {len(alike) - 1} more like it",) if len(alike) > 1 else ()
    step = (f"from position {worst.first} on",) if worst.first > 1 else ()
    wrong: Side = side or "infer"
    keeper = case.side("train" if wrong == "infer" else "infer")

    def correction(view: View, batch: Batch) -> Tensor:
        return _swapped(keeper, view, batch, pattern)

    return Finding(
        cause,
        side,
        (said, *more, *step),
        f"give {pattern.replace(chr(92), '')} the other side's values",
        lambda case: case.with_side(wrong, case.side(wrong).plus(correction)),
    )


def _cause(local: Local, trace: Trace, own: Network, tokens_T: Tensor) -> str:
    """What a node that differs stands for."""
    place = next((cause for pattern, cause in _PLACES if re.search(pattern, local.node)), "operator")
    if place == "rope":
        other = traced(own, tokens_T).positions
        same = trace.positions is None or other is None or torch.equal(trace.positions, other)
        return "rope" if same else "packed_positions"
    if place == "attention" and local.first > 1:
        return "sliding_window"
    if place == "operator":
        return "bias" if local.constant else "stale_tensor"
    return "head_precision" if place == "head" else place


def _swapped(keeper: View, view: View, batch: Batch, pattern: str) -> Tensor:
    """What it adds to a side's numbers to give some nodes the values of the other side, float64 [N]."""
    column = torch.zeros(batch.tokens.numel(), dtype=torch.float64)
    parts = []
    with keeper.holding(), view.holding():
        right = keeper.backend.network(keeper.conditions.but(_EXACT))
        own = view.backend.network(view.conditions.but(_EXACT))
        for tokens, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
            at = mask.nonzero().squeeze(-1)
            trace = traced(right, tokens)
            mended = patched(trace, own, tokens, _matching(pattern)) if pattern != "logits" else trace.seen["logits"]
            before = own.logits(tokens)
            sampling = batch.sampling or PLAIN
            now, then = (token_scores(x[at - 1].float(), tokens[at], sampling)[0].double() for x in (mended, before))
            parts.append(now - then)
    column[batch.mask] = torch.cat(parts)
    return column


def _matching(pattern: str) -> Callable[[Node], bool]:
    return lambda node: re.fullmatch(pattern, node) is not None


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
