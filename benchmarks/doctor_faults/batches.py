"""Sequences beside each other: pads, positions, boundaries of packed rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.sides import HFSide, TorchSide
from benchmarks.doctor_faults.surroundings import always, around, drawn, inverse, mixed, whole
from benchmarks.doctor_faults.ways import (
    drawing,
    generating,
    logits_before,
    places,
    read_end_to_end,
    read_packed,
    read_padded,
    reading,
    rows_of,
    summing,
)
from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.backends.hf import Sequences
from lockstep.models.attention import Packed
from lockstep.models.heads import PLAIN

Usual = Callable[[Sequences], Sequences]


def left_padded(named: Callable[[Tensor, Tensor], dict[str, Tensor]]) -> type[HFSide]:
    """A trainer that pads on the left, and hands what a function makes of places [T] and numbers of pads [B, 1]."""
    return reading(
        lambda usual, model, sequences, prompts: read_padded(
            model, sequences, lambda padded, pads_B: named(torch.arange(padded.shape[1]), pads_B[:, None]), left=True
        )
    )


def attended_padding(block: int) -> type[HFSide]:
    """The trainer's mask hides padding in whole blocks only."""
    return left_padded(lambda place, pads: {"attention_mask": (place >= pads // block * block).long()})


def pads_counted(block: int) -> type[HFSide]:
    """Positions begin at the last whole block of padding, not behind all of it."""
    return left_padded(
        lambda place, pads: {
            "attention_mask": (place >= pads).long(),
            "position_ids": (place - pads // block * block).clamp(min=0),
        }
    )


def pads_seen(count: int) -> type[HFSide]:
    """The engine pads prompts to the left, and the mask begins some tokens too early."""

    def generate(usual: Any, padded: Tensor, attention_mask: Tensor, **named: Any) -> Any:
        begins_B = (padded.shape[1] - attention_mask.sum(1) - count).clamp(min=0)
        return usual(padded, attention_mask=(torch.arange(padded.shape[1]) >= begins_B[:, None]).long(), **named)

    def within(model: PreTrainedModel, *_: object) -> AbstractContextManager[None]:
        return generating(model, generate)

    return drawing(within)


def pads_between_turns(block: int) -> type[HFSide]:
    """To stack rows, the trainer fills prompts up to whole blocks; its mask, made of lengths, hides only the end."""

    def own(usual: Usual, model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> Sequences:
        if len(sequences) == 1:
            return usual(sequences)
        rows = [(tokens, length, -length % block) for tokens, length in zip(sequences, prompts, strict=True)]
        logits = usual([torch.cat([x[:length], x.new_zeros(more), x[length:]]) for x, length, more in rows])
        return [
            torch.cat([one[: length - 1], one[length - 1 + more :]]) if length else one
            for one, (_, length, more) in zip(logits, rows, strict=True)
        ]

    return reading(own)


def positions_with_pads(most: int) -> type[HFSide]:
    """The trainer pads on the left and hands a mask, but no positions, which then begin with the pads.

    Rows of like length go together, so that none has more than so many pads.
    """

    def own(usual: Usual, model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> Sequences:
        logits: dict[int, Tensor] = {}
        for group in _alike([len(tokens) for tokens in sequences], most):
            rows = read_padded(
                model,
                [sequences[row] for row in group],
                lambda padded, pads_B: {"attention_mask": (torch.arange(padded.shape[1]) >= pads_B[:, None]).long()},
                left=True,
            )
            logits |= dict(zip(group, rows, strict=True))
        return [logits[row] for row in range(len(sequences))]

    return reading(own)


def _alike(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Rows in groups, the longest first, in each of which lengths differ by no more than `most`."""
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if groups and lengths[groups[-1][0]] - lengths[row] <= most:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


Row = Callable[[PreTrainedModel, Sequences, list[int]], tuple[Tensor, Tensor | None]]
"""Positions [N] and what sees what [N, N] (None: a mask of ones), by a model, sequences and lengths of prompts."""


def packing(row: Row, most: int = 1_000) -> type[HFSide]:
    """A trainer that packs up to so many sequences into a row, with positions and a mask of its own."""
    return reading(
        lambda usual, model, sequences, prompts: read_packed(model, sequences, *row(model, sequences, prompts)),
        most,
    )


def _together(sequences: Sequences, too_many: int = 0) -> Tensor:
    """Which packed tokens see which: those of their own sequence up to themselves, and some before it [N, N]."""
    place, first_N = torch.arange(sum(len(tokens) for tokens in sequences)), _starts(sequences)[rows_of(sequences)]
    return (place[None] <= place[:, None]) & (place[None] >= first_N[:, None] - too_many)


def _starts(sequences: Sequences) -> Tensor:
    lengths = torch.tensor([len(tokens) for tokens in sequences])
    return lengths.cumsum(0) - lengths


def gap_before_response(most: int) -> type[HFSide]:
    """Positions are counted in a grid whose responses all begin in one column, and the gaps stay when it is packed."""

    def row(model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> tuple[Tensor, Tensor]:
        position_N, row_N = places(sequences), rows_of(sequences)
        prompt_N = torch.tensor(prompts)[row_N]
        gap_N = (max(prompts) - prompt_N).clamp(max=most)
        return position_N + gap_N * (position_N >= prompt_N), _together(sequences)

    return packing(row)


def late_positions(shift: int) -> type[HFSide]:
    """Each sequence begins some positions later than the one before it."""

    def row(model: Any, sequences: Sequences, prompts: list[int]) -> tuple[Tensor, Tensor]:
        most = model.config.max_position_embeddings - max(len(tokens) for tokens in sequences) + 1
        return places(sequences) + rows_of(sequences) * shift % most, _together(sequences)

    return packing(row)


def unpadded_boundaries(multiple: int) -> type[HFSide]:
    """Packed sequences are each padded for their ranks, and positions begin where they would begin without pads."""

    def row(model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(tokens) for tokens in sequences])
        padded, starts = lengths + -lengths % multiple, _starts(sequences)
        # Pads are hidden from all others, so they can be left out once each token's place is known.
        place_N = places(sequences) + (padded.cumsum(0) - padded)[rows_of(sequences)]
        position_N = place_N - starts[torch.searchsorted(starts, place_N, right=True) - 1]
        return position_N, _together(sequences)

    return packing(row)


def positions_from_segments(before: int) -> type[HFSide]:
    """The trainer numbers packed sequences in the mask, and adds the mask up to get positions."""
    return packing(
        lambda model, sequences, prompts: ((rows_of(sequences) + 1).cumsum(0) - 1, _together(sequences)), before + 1
    )


def leaking_pack(most: int) -> type[HFSide]:
    """Each packed sequence also sees the last tokens before its own first one: its boundaries lie too far left."""
    return packing(lambda model, sequences, prompts: (places(sequences), _together(sequences, most)))


def narrow_segment_ids(count: int) -> type[HFSide]:
    """A trainer that packs tells sequences apart by numbers that begin again after `count` of them."""

    def row(model: PreTrainedModel, sequences: Sequences, prompts: list[int]) -> tuple[Tensor, Tensor]:
        segment_N = rows_of(sequences) % count
        return places(sequences), (segment_N[:, None] == segment_N[None]).tril()

    return packing(row)


def mask_of_ones(before: int) -> type[HFSide]:
    """The trainer packs some sequences, and hands a mask of ones too, with which the model looks for no boundaries."""
    return packing(lambda model, sequences, prompts: (places(sequences), None), before + 1)


def bounded(lengths: Callable[[Batch], Tensor]) -> type[TorchSide]:
    """Attention in packed rows is told other lengths of sequences."""

    def own(model: PreTrainedModel, batch: Batch, own_M: Tensor) -> Tensor:
        layout = Packed.of(Batch(batch.tokens, lengths(batch)))
        logits_MV = logits_before(model, batch, own_M, layout=layout)
        return token_scores(logits_MV, batch.tokens[own_M], batch.sampling or PLAIN)[0]

    return summing(own)


def boundaries_lost(share: float) -> type[TorchSide]:
    """Some sequences have no boundary to the one before."""

    def lengths(batch: Batch) -> Tensor:
        row = torch.arange(len(batch))
        begins = ((row * share).long() == ((row - 1) * share).long()) | (row == 0)
        merged = torch.zeros(int(begins.sum()), dtype=torch.int64)
        return merged.index_add_(0, begins.long().cumsum(0) - 1, batch.lengths)

    return bounded(lengths)


def boundaries_of_padded_lengths(multiple: int) -> type[TorchSide]:
    """Sequences lie end to end, and attention is told boundaries as if each were padded to a multiple."""

    def lengths(batch: Batch) -> Tensor:
        ends = (batch.lengths + -batch.lengths % multiple).cumsum(0).clamp(max=batch.tokens.numel())
        said = ends.diff(prepend=torch.zeros(1, dtype=ends.dtype))
        return said[said > 0]

    return bounded(lengths)


FAULTS = (
    Fault(22, 1, "padding attended", ("left_padding",), "train", "tokens in a block", (1000, 4),
          mixed(whole(attended_padding))),
    Fault(31, 1, "gap before the response", ("packed_positions",), "train", "most tokens", (1000, 1),
          mixed(whole(gap_before_response))),
    Fault(32, 1, "leaking pack", ("packed_leak",), "train", "tokens seen", (1000, 1), mixed(whole(leaking_pack))),
    Fault(122, 2, "mask begins early", ("left_padding",), "infer", "pads seen", (64, 1),
          mixed(whole(pads_seen)), around("ernie", "torch", "hf", drawn(top_p=0.95))),
    Fault(131, 2, "late positions in packed rows", ("packed_positions",), "train", "tokens a row", (40, 1),
          mixed(whole(late_positions)), around("gpt2", "hf", "torch")),
    Fault(132, 2, "boundaries lost in packed rows", ("packed_leak",), "train", "share of sequences", (1.0, 0.15),
          mixed(boundaries_lost), around("granite", "torch", "hf")),
    Fault(219, 3, "segment ids begin again", ("packed_leak",), "train", "1 / sequences", (1.0, 1 / 7),
          mixed(inverse(narrow_segment_ids)), around("neox", "hf", "torch")),
    Fault(220, 3, "pads left of a block counted", ("left_padding",), "train", "tokens in a block", (64, 2),
          mixed(whole(pads_counted)), around("opt", "hf", "torch")),
    # A trainer packs; attention is told where sequences begin, convolutions are not.
    Fault(316, 4, "convolutions over packed sequences", ("packed_leak",), "train", "tokens", (15, 2),
          always(reading(lambda usual, model, sequences, prompts: read_end_to_end(model, sequences))),
          around(lambda m: f"lfm, {'long' if m > 2 else 'short'} convolution", "hf", "hf")),
    Fault(417, 5, "pads between turns", ("left_padding",), "train", "tokens in a block", (48, 2),
          mixed(whole(pads_between_turns)), around("mellum", "hf", "torch")),
    Fault(420, 5, "positions of unpadded boundaries", ("packed_positions",), "train", "tokens in a block", (32, 8),
          mixed(whole(unpadded_boundaries)),
          around("deepseek 2", "hf", "torch", drawn(temperature=0.9, top_k=80))),
    Fault(509, 6, "mask of ones", ("packed_leak",), "train", "sequences before", (7, 1),
          mixed(whole(mask_of_ones)), around("cohere2 moe", "hf", "torch", drawn(top_k=60))),
    Fault(620, 7, "boundaries of padded lengths", ("packed_leak",), "train", "tokens", (32, 2),
          mixed(whole(boundaries_of_padded_lengths)), around("lfm moe", "torch", "hf", drawn(top_k=70))),
    Fault(719, 8, "positions begin with the pads", ("left_padding",), "train", "most pads", (64, 6),
          mixed(whole(positions_with_pads)), around("gpt2", "hf", "torch"), split="held-out"),
    Fault(720, 8, "positions from numbered segments", ("packed_positions",), "train", "sequences before", (7, 1),
          mixed(whole(positions_from_segments)),
          around("neox", "hf", "torch", drawn(temperature=0.9, top_p=0.96)), split="held-out"),
)  # fmt: skip
