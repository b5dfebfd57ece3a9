"""The probe that asks about company: whether a sequence gets other numbers beside others than alone, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.doctor.base import Conditions, Scores, Side
from lockstep.doctor.case import Case, View, apart, size
from lockstep.doctor.probes.base import FOR_WANT_OF_A_BETTER, SIDES, Clean, Finding, Outcome, Probe, under
from lockstep.doctor.probes.proof import against

_DUST = 2e-5
_NOTABLE = 0.2
"""Part of the gap that a change has to move to be worth a counter-setting."""
_ALONE = Conditions(layout="alone", batch_size=1)


def company(case: Case, refused: Sequence[str]) -> Outcome:
    """Whether a sequence gets other numbers alone than beside others."""
    said = []
    for side in SIDES:
        view, batch = case.side(side), case.scored(side)
        if not view.can("batch_size"):
            said.append(f"{side} cannot be asked for one sequence at a time")
            continue
        usual, alone = view.scores(batch), view.scores(batch, _ALONE)
        moved = apart(usual.logprob, alone.logprob) * case.compared
        if (denial := against(view, _ALONE, alone.effective)) is not None:
            said.append(f"{side} was asked for {denial}")
            continue
        said.append(f"{side} moves by {size(moved[case.compared]):.2g} nats")
        if size(moved[case.compared]) <= max(_DUST, _NOTABLE * case.gap):
            continue
        noise = size(apart(view.scores(batch).logprob, usual.logprob)[case.compared])
        if size(moved[case.compared]) > 2 * noise:
            found = _in_company(case, side, usual, moved, noise)
            if found.cause not in refused:
                return found
    return Clean("; ".join(said))


def padded_beside(lengths_B: Tensor, rows: int) -> Tensor:
    """Which sequences are shorter than the longest of so many side by side, bool [B]."""
    longest = torch.stack([chunk.max() for chunk in lengths_B.split(rows)])
    return longest.repeat_interleave(rows)[: len(lengths_B)] > lengths_B


def _in_company(case: Case, side: Side, usual: Scores, moved_N: Tensor, noise: float) -> Finding:
    """Which way company changes the numbers: by what neighbours say, by where they put a sequence, or by rounding.

    Args:
        usual: What the side says in company.
        moved_N: How far the numbers are from those of a sequence alone, nats.
        noise: Size of the difference of two such passes, nats.
    """
    view, rows, layout = case.side(side), view_rows(case, side), usual.effective.get("layout", "padded")
    lengths = case.drawn.lengths
    padded = padded_beside(lengths, rows)
    off_B = case.drawn.per_sample(moved_N.abs()) / case.drawn.per_sample(case.compared.double()).clamp(min=1)
    seen = _neighbours_seen(case, view, rows)
    placed = _placed(usual, case.drawn)
    said = [f"alone, its numbers move by {size(moved_N[case.compared]):.2g} nats"]
    if layout == "packed" and seen > max(_DUST, 2 * noise):
        cause, why = "packed_leak", f"other words in the sequence before it move them by {seen:.2g} nats"
    elif layout == "packed" and placed is False:
        cause, why = "packed_positions", "its layers are given positions that do not count from 0 in each sequence"
    elif layout == "packed" and all(bool(right.any()) for right in (off_B < 0.02 * off_B.max()).split(rows)):
        cause = "packed_leak" if placed else "packed_positions"
        why = "in each pack some sequences are right, and others are far off"
        why += ", though positions are right: attention has other boundaries" if placed else ""
    elif usual.effective.get("attended", 0) > len(case.drawn.tokens):
        cause, why = "left_padding", "its masks show more tokens than there are"
    elif layout == "padded" and placed is False:
        cause, why = "left_padding", "its layers are given positions that do not count from 0 in each sequence"
    elif layout == "padded" and padding_moves(off_B, padded):
        cause, why = "left_padding", "sequences that need no padding are right, those that are padded are not"
    else:
        cause, why = "batch_variance", "sequences move wherever they stand, whatever stands beside them"
    least = FOR_WANT_OF_A_BETTER if cause == "batch_variance" else 0.1
    return Finding(
        cause,
        side,
        (*said, why),
        "one sequence at a time",
        under(side, _ALONE),
        least,
    )


def padding_moves(off_B: Tensor, padded_B: Tensor) -> bool:
    """Whether those with padding, nearly all of them, are off, and those without are not."""
    with_it, without = off_B[padded_B], off_B[~padded_B]
    most = float((with_it > 1e-3 * off_B.max()).double().mean()) > 0.8
    return most and float(without.mean()) < 0.1 * float(with_it.mean())


def _placed(usual: Scores, batch: Batch) -> bool | None:
    """Whether layers were given each token's position within its own sequence; None where that was not seen."""
    given, masks = usual.effective.get("positions", ()), usual.effective.get("masks", ())
    if len(masks) == len(given):  # side by side, with padding
        given = [positions.expand_as(mask)[mask] for positions, mask in zip(given, masks, strict=True)]
    given = [positions.flatten() for positions in given]
    if sum(map(len, given)) != len(batch.tokens):
        return None
    return torch.equal(torch.cat(given), batch.position)


def view_rows(case: Case, side: Side) -> int:
    """Sequences that a side usually puts side by side."""
    view = case.side(side)
    return view.conditions.batch_size or int(view.backend.settings().get("batch_size", 1))


def _neighbours_seen(case: Case, view: View, rows: int) -> float:
    """How far numbers move when the first sequence of each pass says something else, nats."""
    batch = replace(case.drawn, sampling=None)
    first_N = batch.row % rows == 0
    changed = replace(batch, tokens=torch.where(first_N, torch.roll(batch.tokens, 7), batch.tokens))
    moved = apart(view.scores(changed).logprob, view.scores(batch).logprob)
    return size(moved[case.compared & ~first_N])


COMPANY = Probe("batch and padding", company)
