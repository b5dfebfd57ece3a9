"""Probes that ask what the model is: its configuration and its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lockstep.doctor.base import Backend, Conditions, Side
from lockstep.doctor.case import Case, Correction, Counter, View
from lockstep.doctor.probes.base import SIDES, Clean, Finding, Outcome, Probe, Skipped

_FIELDS = (
    ("rope", "rope"),
    ("window", "sliding_window"),
    ("layer_types", "sliding_window"),
    ("eps", "norm_eps"),
    ("softcapping", "softcap"),
    ("hidden_act", "activation"),
    ("hidden_activation", "activation"),
    ("_bias", "bias"),
    ("tie_word_embeddings", "tied_head"),
)
"""Part of a field's name → the cause that another value is."""

_ALIKE = 1e-6
"""Of the largest number: the same number, computed otherwise."""

_BLOCKS = (16, 32, 64, 128, 256)
"""Numbers that share a scale, as quantisers have them."""

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def configuration(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether a side's configuration is another than the folder's, so that its numbers are."""
    folder, configs = case.witness.config(), {side: case.side(side).backend.config() for side in SIDES}
    for side in SIDES:
        own, undone = configs[side], dict(case.side(side).conditions.config)
        wrong = [name for name in sorted(folder.keys() | own.keys()) if own.get(name) != folder.get(name)]
        for name in (name for name in wrong if name not in undone):
            cause = next((cause for part, cause in _FIELDS if part in name), None)
            if cause is None or cause in refused:
                continue
            right = {one: _agreed(one, folder, **configs) for one in wrong}
            said = f"{name} is {own.get(name)}; it should be {right[name]}"
            fields = tuple((one, right[one]) for one in wrong if any(p in one and c == cause for p, c in _FIELDS))
            return Finding(cause, side, (said,), f"build it with {name}={right[name]}", _rebuilt(case, side, fields))
    return Clean("both sides have the folder's configuration, or differ in nothing that a cause is known for")


def _agreed(name: str, folder: Mapping[str, Any], train: Mapping[str, Any], infer: Mapping[str, Any]) -> Any:
    """What a field should be: as in the folder, if a side has that, else as on the inference side."""
    return folder.get(name) if folder.get(name) in (train.get(name), infer.get(name)) else infer.get(name)


def _rebuilt(case: Case, side: Side, fields: tuple[tuple[str, object], ...]) -> Counter | None:
    if not case.side(side).can("config"):
        return None
    return lambda case: case.with_side(side, case.side(side).under(Conditions(config=fields)))


@dataclass(frozen=True)
class Right:
    """What a side should hold.

    Attributes:
        tensors: By name.
        buffers: Which of them are no parameters.
    """

    tensors: Mapping[str, Tensor]
    buffers: set[str]


@dataclass(frozen=True)
class Wrong:
    """A tensor of a side that is not the witness's.

    Attributes:
        cause: What it looks like.
        said: The same for people.
        right: What it should be.
    """

    cause: str
    said: str
    right: Tensor


def weights(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether a side holds other weights or buffers than the folder."""
    blind: list[Side] = [side for side in SIDES if not case.side(side).can("weights")]
    if len(blind) == 2:
        return Skipped("no side shows its weights")
    right = Right(dict(case.witness.weights()), {name for name, _ in case.witness.network().modules.named_buffers()})
    for side in SIDES:
        if side in blind:
            continue
        view = case.side(side)
        found = _wrong(view.backend.weights(), right, {name for name, _ in view.conditions.config})
        found = {name: one for name, one in found.items() if name not in view.tensors and one.cause not in refused}
        if found:
            return _finding(case, side, found)
    return Clean(f"every tensor is the folder's{f'; {blind[0]} shows none' if blind else ''}")


def _finding(case: Case, side: Side, found: Mapping[str, Wrong]) -> Finding:
    """The cause that most of the wrong tensors have; the others are told with the next finding."""
    causes = [one.cause for one in found.values()]
    cause = max(sorted(set(causes)), key=causes.count)
    own = {name: one for name, one in found.items() if one.cause == cause}
    said = [f"{name} {one.said}" for name, one in own.items()]
    shown = (*said[:4], f"and {len(said) - 4} more") if len(said) > 4 else tuple(said)
    right = {name: one.right for name, one in own.items()}
    if case.side(side).can("load") and _takes(case.side(side), right):
        return Finding(cause, side, shown, "load the right tensors", lambda case: _loaded(case, side, right))
    held = with_tied_head(dict(case.side(side).backend.weights()), right)
    there = {name for name, _ in case.witness.weights()}
    wrong = {name: held.get(name, torch.zeros_like(tensor)) for name, tensor in right.items() if name in there}
    doing = instead(case.witness, wrong)
    setting = "take away what the same tensors do to plain transformers"
    return Finding(cause, side, shown, setting, lambda case: case.with_side(side, case.side(side).plus(doing)))


def _takes(view: View, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a side has these tensors after they were loaded."""
    if not tensors.keys() <= {name for name, _ in view.backend.weights()}:
        return False
    with replace(view, tensors=tensors).holding():
        held = dict(view.backend.weights())
        return all(equal(held[name], tensor) for name, tensor in tensors.items())


def instead(witness: Backend, wrong: Mapping[str, Tensor]) -> Correction:
    """What wrong tensors do to the witness's numbers: those without them, minus those with them."""
    return lambda view, batch: View(witness).score(batch) - View(witness, tensors=wrong).score(batch)


def _loaded(case: Case, side: Side, tensors: Mapping[str, Tensor]) -> Case:
    view = case.side(side)
    return case.with_side(side, replace(view, tensors={**view.tensors, **tensors}))


def _wrong(own: Iterable[tuple[str, Tensor]], right: Right, rebuilt: set[str]) -> dict[str, Wrong]:
    """Tensors that are not as they should be, each with what it looks like."""
    held, found = with_tied_head(dict(own), right.tensors), {}
    for name, tensor in held.items():
        should = right.tensors.get(name)
        if should is None and name == HEAD:
            should = right.tensors.get(EMBEDDING)
        if should is None or ("rope" in " ".join(rebuilt) and "inv_freq" in name):
            continue
        if not equal(tensor, should):
            cause, said = _kind(name, tensor, should, right)
            found[name] = Wrong(cause, said, should)
    # A buffer that is not shown says nothing: engines make tables of their own.
    for name in sorted(right.tensors.keys() - held.keys() - {HEAD} - right.buffers):
        cause = "bias" if name.endswith(".bias") else "stale_tensor"
        found[name] = Wrong(cause, "is not there", right.tensors[name])
    return found


def with_tied_head(held: dict[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a side, and as its head the embedding, where it has none of its own as it should."""
    if HEAD in right and HEAD not in held and EMBEDDING in held:
        return {**held, HEAD: held[EMBEDDING]}
    return held


def _kind(name: str, tensor: Tensor, right: Tensor, all_right: Right) -> tuple[str, str]:
    """What a wrong tensor looks like."""
    if name in all_right.buffers:
        return "missed_buffer", f"is a buffer, and differs by up to {_off(tensor, right):.2g}"
    if name == HEAD and HEAD not in all_right.tensors:
        return "tied_head", "is tied to the embedding in the folder, and holds something else here"
    if name.endswith(".bias") and not tensor.any():
        return "bias", "is all zeros"
    if tensor.shape == right.shape:
        swapped = [
            n for n, x in all_right.tensors.items() if n != name and x.shape == tensor.shape and equal(tensor, x)
        ]
        if name == HEAD and EMBEDDING in swapped:
            return "tied_head", "is the embedding here, and a matrix of its own in the folder"
        if swapped:
            return "swapped_tensors", f"holds {swapped[0]}"
    return likeness(tensor, right)


def likeness(tensor: Tensor, right: Tensor) -> tuple[str, str]:
    """What a wrong tensor looks like beside the right one alone: a cause, and the same for people."""
    if tensor.shape == right.shape:
        if _reordered(tensor, right):
            return "permuted_tensor", "has the right numbers in another order"
        if _quantised(tensor, right):
            return "quantised_weights", f"takes {tensor.float().unique().numel()} values only"
    return "stale_tensor", f"differs by up to {_off(tensor, right):.2g}"


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same; if their types differ, up to the rounding of the coarser one."""
    if a.shape != b.shape:
        return False
    if a.dtype == b.dtype or not a.is_floating_point():
        return torch.equal(a, b)
    rounding = max(torch.finfo(x.dtype).eps for x in (a, b)) / 2
    return bool((a.float() - b.float()).norm() <= rounding * b.float().norm())


def _reordered(tensor: Tensor, right: Tensor) -> bool:
    """Whether both have the same numbers, in the coarser of their types."""
    own, other = (x.float().flatten().sort().values.to(x.dtype) for x in (tensor, right))
    return equal(own, other) or bool((own - other).abs().max() <= _ALIKE * right.abs().max())


def _quantised(tensor: Tensor, right: Tensor) -> bool:
    """Whether a tensor is the right one in a shorter type, or close everywhere with few values, or on a grid."""
    if any(torch.equal(tensor.float(), right.to(dtype).float()) for dtype in (torch.bfloat16, torch.float16)):
        return True
    if tensor.ndim < 2:
        return False
    rows = tensor.float().flatten(0, -2)[:8]
    few = max(row.unique().numel() for row in rows) < 0.7 * min(tensor.shape[-1], 256)
    few = few or tensor.float().unique().numel() < 0.1 * right.float().unique().numel()
    few = few or all(_on_a_grid(row) for row in rows) or _few_in_blocks(tensor.float())
    error = (tensor.float() - right.float()).square().mean().sqrt() / right.float().square().mean().sqrt()
    return few and bool(error < 0.3)


def _few_in_blocks(tensor: Tensor) -> bool:
    """Whether blocks have a scale each, and few values besides."""
    sizes = (size for size in _BLOCKS if tensor.shape[-1] % size == 0)
    blocks = (tensor.reshape(-1, size) for size in sizes)
    shares = (block / block.abs().amax(-1, keepdim=True).clamp(min=1e-30) for block in blocks)
    return any(share.round(decimals=4).unique().numel() < min(300, 0.1 * tensor.numel()) for share in shares)


def _on_a_grid(row: Tensor) -> bool:
    """Whether all values are whole multiples of one step, of which the largest has not many."""
    steps = row.unique().diff()
    steps = steps[steps > 1e-4 * row.abs().max()]
    if not steps.numel() or float(row.abs().max() / steps.min()) > 300:
        return False
    counts = row / steps.min()
    return bool((counts - counts.round()).abs().max() < 0.05)


def _off(tensor: Tensor, right: Tensor) -> float:
    return float((tensor.float() - right.float()).abs().max()) if tensor.shape == right.shape else float("inf")


CONFIGURATION = Probe("configuration", configuration)
WEIGHTS = Probe("weight fingerprints", weights, facts=True)
