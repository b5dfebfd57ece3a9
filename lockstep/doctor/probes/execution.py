"""Probes that ask how a backend computes: again, token by token, in other types, by other kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.doctor.base import USUAL, Capability, Conditions, DType, Part, Side
from lockstep.doctor.case import FINEST, Case, Counter, apart, first_drawn, size
from lockstep.doctor.probes.base import FOR_WANT_OF_A_BETTER, SIDES, Clean, Finding, Outcome, Probe, Skipped, under
from lockstep.doctor.probes.company import padded_beside, padding_moves, view_rows
from lockstep.doctor.probes.proof import denied
from lockstep.doctor.probes.states import decodes_the_same_states
from lockstep.doctor.probes.tokens import farther

_REPEATS = 12
_DUST = 2e-5
_NOTABLE = 0.2
"""Part of the gap that a change has to move to be worth a counter-setting."""
_NEARLY_ALL_GONE = 0.1
"""Of the squares: another kernel rounds otherwise, and so takes some of any small gap away."""
_PARTS: dict[Part, str] = {
    "softmax": "softmax_precision",
    "router": "routing",
    "head": "head_precision",
    "norm": "norm_eps",
    "rope": "rope",
}


def repeats(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether the same request gives the same numbers, bit for bit."""
    said = []
    for side in SIDES:
        view, batch = case.side(side), case.scored(side)
        noise = size(apart(view.scores(batch).logprob, view.scores(batch).logprob)[case.compared])
        if noise > _DUST and view.repeats == 1 and (side == "train" or _decodes_alike(case, noise)):
            return _noisy(case, side, noise)
        said.append(f"{side} {'the same bits' if noise == 0 else f'{noise:.2g} nats apart'}")
    if case.infer.prefill:
        return Clean("; ".join(said))
    again = size(_redrawn(case, USUAL))
    if again <= max(_DUST, _NOTABLE * case.gap) or not _decodes_alike(case, again):
        return Clean("; ".join((*said, f"decoding {again:.2g} nats apart")))
    return Finding(
        "nondeterminism",
        "infer",
        (f"the same request was decoded to numbers {again:.2g} nats apart",),
        "take its prefill scores instead",
        lambda case: case.with_side("infer", replace(case.infer, prefill=True)),
    )


def caches(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether the inference side draws otherwise once its caches are dropped, which happens only once."""
    if not case.infer.can("fresh"):
        return Skipped("the inference side cannot be asked to drop its caches")
    if case.infer.conditions.fresh:
        return Clean("its caches were dropped")
    fresh = Conditions(fresh=True)
    noise = size(_redrawn(case, USUAL))
    moved = size(_redrawn(case, fresh))
    said = f"with caches dropped, it draws with numbers {moved:.2g} nats apart; as it is, {noise:.2g}"
    if moved <= max(_DUST, 2 * case.floor, 2 * noise):
        return Clean(said)
    return Finding("stale_prefix_cache", "infer", (said,), str(fresh), under("infer", fresh), 0.0, moved)


def _decodes_alike(case: Case, noise: float) -> bool:
    """Whether decoding is as near to prefill as two passes are; else more than noise is between them."""
    if case.infer.prefill or not (case.infer.can("shaped") or case.sampling.unshaped):
        return True
    return size(_decoded_off(case)[case.compared]) <= 2 * noise


def _redrawn(case: Case, conditions: Conditions) -> Tensor:
    """How far what decoding says of tokens that are drawn alike moves if it is done once more, nats [M]."""
    usual = case.drawn.with_columns({"compared": case.compared})
    again = case.infer.drawn(case.requests, case.sampling, conditions)
    moved = apart(usual["sampler_logprob"], again["sampler_logprob"])
    return moved[usual["compared"] & _same_so_far(usual, again.tokens)]


def _same_so_far(batch: Batch, tokens_N: Tensor) -> Tensor:
    """Tokens up to which another draw of the same requests is the same, bool [N]."""
    differs = (batch.tokens != tokens_N).long()
    before = torch.cumsum(differs, 0) - differs
    return (before == before[batch.starts][batch.row]) & (differs == 0)


def _noisy(case: Case, side: Side, noise: float) -> Finding:
    view = case.side(side)
    said = f"two passes over the same tokens differ by {noise:.2g} nats"
    if view.backend.settings().get("training") and view.can("evaluation"):
        quiet = Conditions(evaluation=True)
        return Finding("dropout", side, (said, "its modules are in training mode"), str(quiet), under(side, quiet))

    def averaged(case: Case) -> Case:
        prefill = case.side(side).prefill or side == "infer"
        return case.with_side(side, replace(case.side(side), repeats=_REPEATS, noise=noise, prefill=prefill))

    return Finding("nondeterminism", side, (said,), f"average {_REPEATS} passes", averaged)


def decoding(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether the inference side scores what it drew as it drew it."""
    if case.infer.prefill:
        return Clean("prefill scores are compared already")
    if not (case.infer.can("shaped") or case.sampling.unshaped):
        return Skipped("the inference side scores at temperature 1 only; draw at temperature 1 to see this")
    off = _decoded_off(case)
    gap, said = size(off[case.compared]), f"decoding and prefill differ by {size(off[case.compared]):.2g} nats"
    if gap <= max(_DUST, 1.5 * case.floor):
        return Clean(said)
    first = first_drawn(case.drawn)
    share = float(off[first].square().sum() / off.square().sum())
    if share > 0.9 and "first_token" not in refused:
        counter: Counter = lambda case: case.without(first)  # noqa: E731
        return Finding("first_token", "infer", (said, f"{share:.0%} of it on first tokens"), "leave them out", counter)
    tried: tuple[tuple[Capability, str, Conditions], ...] = (
        ("unchunked", "chunked_state", Conditions(unchunked=True)),
        ("parts", "kv_precision", Conditions(parts=frozenset(("cache",)))),
        ("batch_size", _of_company(case, off), Conditions(batch_size=1)),
    )
    others = []
    for capability, cause, conditions in tried:
        changed = case.with_side("infer", case.infer.under(conditions))
        if not case.infer.can(capability) or cause in refused:
            continue
        left = size(_decoded_off(changed)[changed.compared])
        if left < 0.15 * gap:
            return _decoding(cause, conditions, (said, f"{left:.2g} with {conditions}"))
        others.append(denied(case, changed) or f"by {left:.2g} nats with {conditions}")
    if decodes_the_same_states(case, off):
        return Clean(f"{said}, though its head is given the same states: they part where the logits are used")
    return Finding(
        "decode_kernel",
        "infer",
        (said, *others),
        "take its prefill scores instead",
        lambda case: case.with_side("infer", replace(case.infer, prefill=True)),
        FOR_WANT_OF_A_BETTER,
        covers=True,
    )


def _of_company(case: Case, off_N: Tensor) -> str:
    """What it is called if it is decoding beside others that makes such a difference."""
    prompts = torch.tensor([len(request.tokens) for request in case.requests])
    off_B = case.drawn.per_sample(off_N.nan_to_num(1.0).abs())
    moves = padding_moves(off_B, padded_beside(prompts, view_rows(case, "infer")))
    return "left_padding" if moves else "batch_variance"


def _decoding(cause: str, conditions: Conditions, said: tuple[str, ...]) -> Finding:
    return Finding(cause, "infer", said, str(conditions), under("infer", conditions))


def _decoded_off(case: Case) -> Tensor:
    """Decoding minus prefill of the inference side, [N]."""
    batch = case.scored("infer") if case.infer.can("shaped") else case.drawn
    return torch.where(case.compared, apart(case.infer_N, replace(case.infer, prefill=True).score(batch)), 0.0)


def types(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether both sides compute in the same type, logits included."""
    declared: dict[Side, DType] = {side: case.side(side).dtype for side in SIDES}
    if declared["train"] != declared["infer"] and "dtype" not in refused:
        return _two_types(case, declared)
    heads = {side: case.side(side).scores(case.scored(side)).effective.get("head") for side in SIDES}
    low: list[Side] = [side for side in SIDES if heads[side] in ("bfloat16", "float16")]
    if len(low) != 1 or None in heads.values() or not case.side(low[0]).can("parts") or "head_precision" in refused:
        return Clean(f"both sides compute in {declared['train']}, and their logits in {heads['train']}")
    side, conditions = low[0], Conditions(parts=frozenset(("head",)))
    said = f"logits are {heads['train']} in train, {heads['infer']} in infer"
    return Finding("head_precision", side, (said,), f"the head of {side} in fp32", under(side, conditions))


def _two_types(case: Case, declared: dict[Side, DType]) -> Finding:
    coarse: Side = max(SIDES, key=lambda side: FINEST.index(declared[side]))
    finer = Conditions(dtype=min(declared.values(), key=FINEST.index))
    said = f"train computes in {declared['train']}, infer in {declared['infer']}"
    counter = under(coarse, finer) if case.side(coarse).can("dtype") else None
    return Finding("dtype", coarse, (said,), f"{coarse} in {finer.dtype}", counter)


def precision(case: Case, refused: Sequence[str]) -> Outcome:
    """Which part of the computation it is that needs fp32 for the gap to go."""
    if not (case.train.can("parts") and case.infer.can("parts")):
        return Skipped("a side cannot compute parts in fp32")
    left: dict[Part, float] = {}
    without: list[Part] = []
    for part, cause in _PARTS.items():
        if cause in refused:
            continue
        changed = _with_part(part)(case)
        if denied(case, changed) is None:
            left[part] = changed.gap
        else:
            without.append(part)
    part = min(left, key=lambda part: left[part], default=None)
    if part is None or left[part] ** 2 > 0.5 * case.gap**2:
        said = f"none of {_listed(left)}, in fp32 on both sides, takes half of the gap away"
        return Clean(f"{said}; {_listed(without)} could not be put into fp32" if without else said)
    said = f"with the {part} in fp32 on both sides the gap goes from {case.gap:.2g} to {left[part]:.2g} nats"
    return Finding(_PARTS[part], farther(case), (said,), f"the {part} in fp32 on both sides", _with_part(part))


def _listed(parts: Iterable[Part]) -> str:
    return ", ".join(parts) or "no parts"


def _with_part(part: Part) -> Counter:
    conditions = Conditions(parts=frozenset((part,)))
    return lambda case: replace(case, train=case.train.under(conditions), infer=case.infer.under(conditions))


def kernel(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether another attention kernel on one of the sides takes the gap away."""
    conditions, said = Conditions(kernel="eager"), list[str]()
    choosing: list[Side] = [side for side in SIDES if case.side(side).can("kernel")]
    if not choosing:
        return Skipped("both sides have one attention kernel")
    for side in choosing:
        changed = under(side, conditions)(case)
        if (denial := denied(case, changed)) is not None:
            said.append(denial)
            continue
        said.append(f"the gap is {case.gap:.2g} nats as it is, and {changed.gap:.2g} with the eager kernel in {side}")
        if changed.gap**2 <= _NEARLY_ALL_GONE * case.gap**2:
            return Finding("kernel", side, (said[-1],), "the eager kernel", under(side, conditions))
    return Clean("; ".join(said))


TYPES = Probe("types", types, facts=True)
CACHES = Probe("caches", caches)
REPEATS = Probe("repeats", repeats, facts=True)
DECODING = Probe("decoding against prefill", decoding)
PRECISION = Probe("precision", precision, small=False)
KERNEL = Probe("kernel", kernel, small=False)
