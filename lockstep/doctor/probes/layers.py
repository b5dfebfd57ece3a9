"""The probe that looks inside: which module, or what code between modules, does another thing with the same inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.base import ROTARY, Conditions, Network, Side
from lockstep.doctor.case import Case, Counter, View
from lockstep.doctor.causes import CAUSES
from lockstep.doctor.probes.base import SIDES, Clean, Finding, Outcome, Probe, Skipped
from lockstep.doctor.probes.products import ROUNDED, misread, misused
from lockstep.doctor.probes.tokens import farther
from lockstep.doctor.tracing import Local, Node, Trace, compared, of_zeros, patched, traced, unturned
from lockstep.models.heads import PLAIN

_EXACT = Conditions(dtype="fp32", layout="alone")
_ALONE = Conditions(layout="alone", batch_size=1)
_MOST = 0.9
_LOOSE = 5e-5
"""Relative error of a node in fp32, from which on it does another thing, and does not only round otherwise."""

_ROUNDED = 0.01
"""The same, up to which sixteen bits can be what makes the difference."""

_PLACES: tuple[tuple[str, str], ...] = (
    (rf"({'|'.join(ROTARY)}):out$", "rope"),
    (r"(embed\w*|wte|wpe|\w+_embeddings?):out$", "embedding"),
    (r"\.0\.(\w*norm|ln_1):in$", "embedding"),
    (r"(norm|ln_\w+):out$", "norm_eps"),
    (r"(o_proj|(attn|attention)\.dense|attn\.(c_proj|out_proj)|(attn|attention)_dropout):in$", "attention"),
    (r"(o_proj|down_proj|out_proj|c_proj|attn\.dense|attention\.dense|4h_to_h|fc2):out$", "sum over ranks"),
    (r"((act|act_fn|activation_fn):out|(down_proj|4h_to_h|fc2|mlp\.c_proj):in)$", "activation"),
    (r"(act|act_fn|activation_fn):in$", "product past its module"),
    (r"experts:out$", "experts"),
    (r"(gate|router)(\.layer)?:out$", "routing"),
    (r"lm_head:out$", "head"),
    (r"(proj\w*|fc\w*|attn|query_key_value|dense\w*):out$", "projection"),
    (r"^logits$", "softcap"),
)

_ROUNDED_IN = {"head": "head_precision", "sum over ranks": "parallel_reduction"}
"""What it is called if products of such a place alone have sixteen bits."""


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


@dataclass(frozen=True)
class Inside:
    """Both networks on one sequence, the training side's first.

    Attributes:
        right: Whose inputs the other one is given.
        own: The other one.
        trace: What the first one's modules were given and gave.
        tokens: Of the sequence [T].
        ranks: Whether a side's layers lie on several ranks.
        called: Nodes of the other one that computed.
    """

    right: Network
    own: Network
    trace: Trace
    tokens: Tensor
    ranks: bool
    called: frozenset[Node]

    def cause(self, local: Local) -> str | None:
        """What a node that differs stands for; None where that is not known."""
        place = kind(local.node)
        if local.error == float("inf"):  # as many numbers as the other side has tokens in its vocabulary
            return "padded_vocabulary"
        match place:
            case "attention" | "activation" if self._fed_unseen(local.node):
                return None
            case "attention" if local.node in self._turned_otherwise:
                return "rope"
            case "attention":
                return "sliding_window" if local.first > 1 else "attention"
            case "product past its module":
                block, _, inner = local.node.removesuffix(":in").rpartition(".")
                right, own = self._modules(block)
                return misread(right, own, inner)
            case "projection" | "sum over ranks":
                return self._of_product(local, place)
            case "experts":
                return self._of_product(local, place) or ("bias" if self._adds_otherwise(local.node) else "activation")
            case "head":
                return self._of_product(local, place) or ("head_precision" if local.error < _ROUNDED else None)
        return place if place in CAUSES else None

    def _modules(self, path: str) -> tuple[nn.Module, nn.Module]:
        return self.right.modules.get_submodule(path), self.own.modules.get_submodule(path)

    def _fed_unseen(self, node: Node) -> bool:
        """Whether what feeds a module is computed in its own way, past modules whose weights would show."""
        parent = node.rpartition(".")[0]
        beside = {one for one in self.trace.seen if one.startswith(f"{parent}.") and one.endswith(":out")}
        passed = beside - self.called - {node.replace(":in", ":out")}
        return any(any(True for _ in self._held(one)) for one in passed)

    def _held(self, node: Node) -> Iterator[nn.Parameter]:
        return self.right.modules.get_submodule(node.removesuffix(":out")).parameters()

    def _of_product(self, local: Local, place: str) -> str | None:
        """Of a matrix product that comes out otherwise."""
        if local.constant:
            return "bias"
        if self.ranks and place in ("sum over ranks", "experts"):
            return "parallel_reduction"
        right, own = self._modules(local.node.removesuffix(":out"))
        held = dict(own.named_parameters())
        if any(not torch.equal(tensor, held[name]) for name, tensor in right.named_parameters() if name in held):
            return "stale_tensor"
        used = misused(right, own)
        return used if used != ROUNDED else _ROUNDED_IN.get(place, "dtype")

    def _adds_otherwise(self, node: Node) -> bool:
        """Whether a module gives something else for states of zero, too, to which nothing is done but to add."""
        right, own = of_zeros(self.right, self.own, node.removesuffix(":out"), self.tokens)
        return not torch.allclose(right, own, rtol=0.0, atol=_LOOSE * float(right.abs().max().clamp(min=1e-30)))

    @cached_property
    def _turned_otherwise(self) -> set[Node]:
        """Nodes that differ, but not where rotary embeddings turn nothing."""
        with unturned(self.right.modules), unturned(self.own.modules):
            found = compared(traced(self.right, self.tokens), self.own, self.tokens)
        return {local.node for local in found if local.error <= _LOOSE}


def layers(case: Case, refused: Sequence[str]) -> Outcome:
    """Which part of the network gives something else, in fp32, for the same inputs."""
    if not all(case.side(side).can("modules", "dtype") for side in SIDES):
        return Skipped("a side shows no modules, or cannot compute in fp32")
    swaps = [one for side in SIDES for one in case.side(side).corrections if isinstance(one, Swap)]
    tokens = case.farthest
    ranks = any(int(case.side(side).backend.settings().get("tensor_parallel_size", 1)) > 1 for side in SIDES)
    with case.train.holding(), case.infer.holding():
        right, own = (case.side(side).backend.network(case.side(side).conditions.but(_EXACT)) for side in SIDES)
        trace = traced(right, tokens)
        every = compared(trace, own, tokens)
        inside = Inside(right, own, trace, tokens, ranks, frozenset(local.node for local in every))
        found = [local for local in every if local.error > _LOOSE]
        found = [local for local in found if not any(kind(local.node) in swap.kinds for swap in swaps)]
        causes = {local.node: cause for local in found if (cause := inside.cause(local)) not in (None, *refused)}
    if "dtype" in causes.values():
        causes = {node: "dtype" if cause == "parallel_reduction" else cause for node, cause in causes.items()}
    named = [local for local in found if local.node in causes]
    if not named:
        unknown = f"; {found[0].node} does, and no cause is known for that" if found else ""
        return Clean(f"every module gives the same for the same inputs, to a part in {1 / _LOOSE:.0f}{unknown}")
    worst = max(named, key=lambda local: local.error)
    return _finding(case, worst, causes[worst.node], [local for local in named if kind(local.node) == kind(worst.node)])


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

    def plainly(case: Case) -> Case:
        return counter(case.with_side(wrong, replace(case.side(wrong).under(_ALONE), prefill=True)))

    setting = f"give what {kind(worst.node)} computes the other side's values"
    swapped = counter(case)
    if swapped.gap < 0.9 * case.gap:
        # What was tried on this case need not be computed again for it.
        kept: Counter = lambda other: swapped if other is case else counter(other)  # noqa: E731
        return Finding(cause, side, tuple(said), setting, kept, rough=True)
    # What a node does may depend on what is computed beside it; a swap is of sequences by themselves.
    setting += ", each sequence by itself and by prefill"
    return Finding(cause, side, tuple(said), setting, plainly, _MOST, rough=True)


def kind(node: Node) -> str:
    """What sort of thing a node is, whatever its layer."""
    return next((place for pattern, place in _PLACES if re.search(pattern, node)), re.sub(r"\.\d+\.", ".", node))


def _wrong_side(case: Case, node: Node) -> Side | None:
    """The side whose node is not the witness's, for the witness's inputs."""
    tokens = case.farthest
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
    tokens = case.farthest
    with case.train.holding(), case.infer.holding():
        right, own = (case.side(side).backend.network(case.side(side).conditions) for side in SIDES)
        return compared(traced(right, tokens), own, tokens)


LAYERS = Probe("layer by layer", layers)
