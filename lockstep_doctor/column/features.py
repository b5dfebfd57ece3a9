"""Features of each compared token, by name: row, position, id, value, and what else a dump says."""

from __future__ import annotations

import numpy as np

from lockstep_doctor.column.columns import TokenColumns
from lockstep_doctor.column.predicates import Feature

_CONSEQUENCE = 6.0
"""Cost of a side's own value, which a damage may have made itself."""


def name_value(side: str) -> str:
    """Returns the name of the feature that is the value of a side with this name."""
    return f"{side}'s log-probability"


def list_features(columns: TokenColumns) -> list[Feature]:
    """Returns the features of the tokens that are compared; those that never vary are left out."""
    mask = columns.mask.numpy()
    row, position = columns.row.numpy()[mask], columns.position.numpy()[mask]
    first = np.searchsorted(row, row)  # of the tokens in the row of each
    place = np.arange(row.size) - first
    stretch = np.cumsum((np.diff(position, prepend=-1) > 1) | (place == 0))
    length = np.bincount(row, minlength=1)[row]
    found = [
        Feature("row", row, repeats=True),
        Feature("place in the response", place + 1, repeats=True),
        Feature("position", position, repeats=True),
        Feature("places before the last token", length - 1 - place, repeats=True),
        Feature("turn", stretch - stretch[first] + 1),
        Feature("place in the turn", np.arange(row.size) - np.searchsorted(stretch, stretch) + 1),
        Feature("length of the response", length),
        Feature("length of the prompt", position[first]),
        Feature("place in the batch", np.arange(row.size), repeats=True),
    ]
    if columns.ids is not None:
        ids = columns.ids.numpy()
        before = np.where(position > 0, np.roll(ids, 1)[mask], -1)
        found += [Feature("id", ids[mask]), Feature("id before", before, cost=2.0)]
    told = {name: Feature(name, value.double().numpy()[row]) for name, value in columns.facts.items()}
    found = [one for one in found if one.name not in told] + list(told.values())
    for side, values in ((columns.names["train"], columns.train), (columns.names["infer"], columns.infer)):
        finite = np.nan_to_num(values.double().numpy()[mask], nan=-1e30, posinf=1e30, neginf=-1e30)
        found.append(Feature(name_value(side), finite, cost=_CONSEQUENCE))
    return [one for one in found if one.varies]
