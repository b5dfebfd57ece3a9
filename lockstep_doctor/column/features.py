"""Features of each compared token, by name: row, position, id, value, and what else a dump says."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lockstep_doctor.column.columns import TokenColumns
from lockstep_doctor.column.predicates import Feature

_CONSEQUENCE = 6.0
"""Cost of the features that a damage may have made itself."""


def list_features(columns: TokenColumns) -> list[Feature]:
    """Returns the features of the tokens that are compared; those that never vary are left out."""
    mask, row_N = columns.mask, columns.row
    row = row_N[mask]
    index = _places(row)
    length = torch.bincount(row, minlength=columns.lengths.numel())[row]
    turn_N = _turns(mask, row_N)
    turn = turn_N[mask]
    in_turn = _places(row * (int(turn.max()) + 1 if turn.numel() else 1) + turn)
    position = columns.position[mask]
    found = [
        Feature("row", _whole(row), repeats=True),
        Feature("place in the response", _whole(index + 1), repeats=True),
        Feature("position", _whole(position), repeats=True),
        Feature("places before the last token", _whole(length - 1 - index), repeats=True),
        Feature("turn", _whole(turn)),
        Feature("place in the turn", _whole(in_turn + 1)),
        Feature("length of the response", _whole(length)),
        Feature("length of the prompt", _whole((position - index)[_first(row, index)] if index.numel() else index)),
        Feature("place in the batch", np.arange(row.numel()), repeats=True),
    ]
    if columns.prompt_lengths is not None:
        found[7] = Feature("length of the prompt", _whole(columns.prompt_lengths[row]))
    if columns.ids is not None:
        before = torch.cat([columns.ids[:1] * 0 - 1, columns.ids[:-1]])
        before[columns.offsets[:-1][columns.lengths > 0]] = -1
        found += [Feature("id", _whole(columns.ids[mask])), Feature("id before", _whole(before[mask]), cost=2.0)]
    told = {
        "weight version": columns.versions,
        "temperature": columns.temperatures,
        "top_p": columns.top_ps,
        "prompt": columns.clusters,
    }
    found += [Feature(name, value[row].double().numpy()) for name, value in told.items() if value is not None]
    for name, side in (("training's log-probability", columns.train), ("inference's log-probability", columns.infer)):
        found.append(Feature(name, side[mask].double().nan_to_num(-1e30, 1e30, -1e30).numpy(), cost=_CONSEQUENCE))
    return [feature for feature in found if feature.values.size and bool((feature.values != feature.values[0]).any())]


def _whole(value: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return value.long().numpy()


def _places(group: Tensor) -> Tensor:
    """Place of each entry among those of its group, from 0; groups are not interleaved."""
    if not group.numel():
        return group
    change = torch.ones_like(group, dtype=torch.bool)
    change[1:] = group[1:] != group[:-1]
    starts = change.nonzero()[:, 0]
    return torch.arange(group.numel()) - starts[change.long().cumsum(0) - 1]


def _first(row: Tensor, index: Tensor) -> Tensor:
    """Number of the first entry in the row of each entry."""
    return torch.arange(row.numel()) - index


def _turns(mask: Tensor, row: Tensor) -> Tensor:
    """Number of the turn of each entry, from 1: stretches of generated tokens within a row."""
    begins = mask.clone()
    begins[1:] &= ~mask[:-1] | (row[1:] != row[:-1])
    count = begins.long().cumsum(0)
    before = torch.zeros_like(count)
    if row.numel():
        fresh = torch.ones_like(mask)
        fresh[1:] = row[1:] != row[:-1]
        starts = fresh.nonzero()[:, 0]
        before = (count - begins.long())[starts][fresh.long().cumsum(0) - 1]
    return count - before
