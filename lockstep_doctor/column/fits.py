"""Fits to the differences of all tokens, where they clearly look like something: growth, a nucleus, a temperature.

Each is asked for several marks at once, and where they are not all there, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep_doctor.column.columns import ColumnSide, Finding
from lockstep_doctor.column.predicates import Floats
from lockstep_doctor.statistics import Compared

_LEAST_TOKENS = 200
_BINS = 16
_ROUNDING = 0.03  # nats by which rounding may carry a token over a line


def find_trends(compared: Compared, versions: Tensor | None) -> list[Finding]:
    """Returns with what differences grow."""
    if compared.train.numel() < _LEAST_TOKENS or not bool(compared.delta.any()):
        return []
    found = [_trend(compared, "position", compared.position.numpy(), 4.0)]
    if versions is not None:
        age = (versions.max() - versions)[compared.row].numpy()
        found = [_trend(compared, "the age of the weights", age, 2.0), *found]
    return [one for one in found if one is not None]


def find_fits(compared: Compared, top_ps: Tensor | None, names: Mapping[ColumnSide, str]) -> list[Finding]:
    """Returns what fits the differences of all tokens, and whether few tokens hold nearly all of them."""
    compared = compared.select(compared.supported)
    if compared.train.numel() < _LEAST_TOKENS or not bool(compared.delta.any()):
        return []
    train, infer = compared.train.numpy(), compared.infer.numpy()
    nucleus = _nucleus("infer", infer, train, top_ps) or _nucleus("train", train, infer, top_ps)
    return [one for one in (nucleus, fit_temperature(train, infer, names), _few_tokens(compared)) if one is not None]


def _trend(compared: Compared, name: str, values: NDArray[Any], least: float) -> Finding | None:
    """Differences grow with a number, by that factor at least; a step at one value is a matter of predicates.

    What is compared is the median |Δ| of each value, or of 16 parts of them, over what tokens so surprising have.
    """
    size = np.minimum(compared.delta.abs().numpy(), 20.0)
    usual = np.empty_like(size)
    for part in np.array_split(np.argsort(-compared.infer.numpy(), kind="stable"), 8):
        usual[part] = max(size[part].mean(), 1e-12)
    level = size / usual * size.mean()
    _, group = np.unique(values, return_inverse=True)
    if group.max() >= _BINS:
        group[np.argsort(values, kind="stable")] = np.arange(size.size) * _BINS // size.size
    typical = np.array([np.median(level[group == one]) for one in range(group.max() + 1)])
    quarter, many = max(1, typical.size // 4), typical.size > 4
    first, last = typical[:quarter].mean(), typical[-quarter:].mean()
    falls = np.sum(typical[1:] < (0.8 if many else 1.15) * typical[:-1])
    edges = range(2, typical.size - 2) if many else ()
    jumps = any(typical[edge:].min() > 4 * typical[:edge].max() + 1e-6 for edge in edges)
    if last < least * first + 1e-6 or falls > many or jumps:
        return None
    squares = np.square(compared.delta.numpy())
    share = float(squares[group >= typical.size - quarter].sum() / squares.sum())
    what = f"the typical |Δ| grows from {first:.2g} at the least of {name} to {last:.2g} at the most"
    return Finding(f"grows with {name}", what, None, None, size.size, share)


def _few_tokens(compared: Compared) -> Finding | None:
    """Few tokens of several sequences are far off between others that agree; how far those behind them are is said."""
    size = np.minimum(compared.delta.abs().numpy(), 20.0)
    far = (size > 0.5) & (compared.index.numpy() > 1)
    median, kurtosis = np.median(size), np.mean(size**4) / np.mean(size**2) ** 2
    row = compared.row.numpy()
    rows, first = np.unique(row[far], return_index=True)
    if median > 0.05 or kurtosis < 100 or not 1e-3 < far.mean() < 0.05 or rows.size < 3:
        return None
    behind = np.flatnonzero(far)[first][:, None] + np.arange(1, 9)
    there = behind < size.size
    there[there] &= row[behind[there]] == np.broadcast_to(rows[:, None], behind.shape)[there]
    times = np.mean(size[behind[there]]) / max(size[~far].mean(), 1e-9) if there.any() else 0.0
    what = (
        f"{far.mean():.2%} of tokens are off by more than 0.5 nats, in {rows.size} of {compared.lengths.numel()} "
        f"sequences, while half of all are within {median:.2g}; the 8 behind the first are off by {times:.2g} times "
        f"what others are"
    )
    share = float(np.square(size[far]).sum() / np.square(size).sum())
    return Finding("few tokens far off", what, None, None, size.size, share)


def _nucleus(side: ColumnSide, own: Floats, other: Floats, top_ps: Tensor | None) -> Finding | None:
    """One side's numbers are renormalised over a nucleus: Δ of one sign, up to −log top_p and not farther.

    Where one token is the whole nucleus, that side says 0, and the other does not.
    """
    gain = own - other
    kept = math.exp(-gain.max())
    one_sided = float(np.maximum(gain, 0).sum() / np.abs(gain).sum())
    near, certain = np.mean(gain > 0.7 * gain.max()), np.mean((own > -1e-6) & (other < -1e-3))
    if one_sided < 0.97 or near < 0.02 or certain < 0.02 or not 0.3 < kept < 0.999:
        return None
    said = "" if top_ps is None else f"; the dump says top_p = {float(top_ps.median()):g}"
    what = (
        f"{one_sided:.1%} of the difference has one sign, and none of it exceeds {gain.max():.3g} nats = "
        f"−log {kept:.3g}; {certain:.0%} of tokens are certain on one side only{said}"
    )
    return Finding("renormalised over a nucleus", what, side, None, own.size, one_sided)


def fit_temperature(train: Floats, infer: Floats, names: Mapping[ColumnSide, str]) -> Finding | None:
    """Finds the ratio of two temperatures from the edge of the cloud, not from its slope.

    With α the ratio, log p_α = α·log p + (α − 1)·H, where H ≥ 0 is an entropy (Rényi's) of the token's context. A slope
    over all tokens is attenuated by how H varies with log p; but where H is near 0 the points lie on the line α·log p,
    and none lies beyond it. So α is the extreme ratio among unlikely tokens, and the line must bound all the others.

    Returns:
        None where the differences do not follow the log-probability, or the line bounds nothing.
    """
    correlation = np.corrcoef(infer, train - infer)[0, 1] if infer.std() * (train - infer).std() > 0 else 0.0
    slope = float(correlation * (train - infer).std() / max(infer.std(), 1e-300))
    rare = infer < -3.0
    if abs(slope) < 0.02 or correlation**2 < 0.2 or rare.sum() < 30:
        return None
    alpha = float(np.sort(train[rare] / infer[rare])[-3 if slope > 0 else 2])
    past = (alpha * infer - train) * math.copysign(1.0, slope)
    beyond = np.mean(past > _ROUNDING + 0.05 * np.abs((alpha - 1) * infer))
    if abs(alpha - 1) < abs(slope) or not 0.05 < alpha < 20 or beyond > 0.005:
        return None
    what = (
        f"as if {names['infer']}'s temperature were {alpha:.3g} times {names['train']}'s: its line bounds "
        f"{1 - beyond:.1%} of the tokens, and a line explains {correlation**2:.0%} of the variance (the entropy of "
        f"contexts makes the rest)"
    )
    return Finding("temperature", what, None, None, train.size, float(correlation**2))
