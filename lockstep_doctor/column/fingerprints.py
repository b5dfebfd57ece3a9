"""Fits to the differences of all tokens, where they clearly look like something: growth, a nucleus, a temperature.

Each is asked for several marks at once, and where they are not all there, nothing is said.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from lockstep_doctor.column.finding import ColumnSide, Finding
from lockstep_doctor.column.relations import fit_temperature
from lockstep_doctor.statistics import Compared

_LEAST_TOKENS = 200
_SPIKE = 2.0  # nats
_BINS = 16


def find_gradual(compared: Compared, versions: Tensor | None) -> list[Finding]:
    """Returns what grows: with the age of weights, with the position, or behind one token of some sequences."""
    if compared.train.numel() < _LEAST_TOKENS or not bool(compared.delta.any()):
        return []
    found = (_staleness(compared, versions), _growth(compared), _find_retokenised(compared))
    return [one for one in found if one is not None]


def find_fits(compared: Compared, top_ps: Tensor | None) -> list[Finding]:
    """Returns what fits the differences of all tokens."""
    compared = compared.select(compared.supported)
    if compared.train.numel() < _LEAST_TOKENS or not bool(compared.delta.any()):
        return []
    found = (_top_p(compared, top_ps) or _constant(compared), _temperature(compared), _spikes(compared))
    return [one for one in found if one is not None]


def _fit(
    kind: str, what: str, compared: Compared, share: float, *consistent: str, side: ColumnSide | None = None
) -> Finding:
    return Finding(kind, what, side, None, compared.train.numel(), share, consistent)


def _growth(compared: Compared) -> Finding | None:
    """Differences grow over all positions; a step at one of them is a matter of predicates."""
    typical = _profile(compared)
    if not typical:
        return None
    quarter = len(typical) // 4
    first, last = sum(typical[:quarter]) / quarter, sum(typical[-quarter:]) / quarter
    falls = sum(later < 0.8 * sooner for sooner, later in pairwise(typical))
    jumps = any(min(typical[edge:]) > 4 * max(typical[:edge]) + 1e-6 for edge in range(2, len(typical) - 2))
    if last < 4 * first + 1e-6 or falls > 1 or jumps:
        return None
    what = f"the typical |Δ| grows from {first:.2g} in the first quarter of positions to {last:.2g} in the last"
    squares = compared.delta.square()
    late = compared.position >= compared.position.double().quantile(0.75)
    share = float(squares[late].sum() / squares.sum())
    return _fit("grows with position", what, compared, share, "another rotary embedding", "a cache in a low precision")


def _profile(compared: Compared) -> list[float]:
    """Typical |Δ| by position, in bins of equally many tokens: |Δ| over what tokens so surprising usually have.

    Returns:
        The median |Δ| in each bin, nats, at the surprise of all.
    """
    size = compared.delta.abs()
    order = compared.position.argsort(stable=True)
    if order.numel() < _BINS * 40:
        return []
    usual = torch.ones_like(size)
    surprise = (-compared.infer).argsort(stable=True)
    for part in surprise.tensor_split(8):
        usual[part] = size[part].mean().clamp(min=1e-12)
    level = size / usual * size.mean()
    return [float(level[part].median()) for part in order.tensor_split(_BINS)]


def _top_p(both: Compared, top_ps: Tensor | None) -> Finding | None:
    """One side's numbers are renormalised over a nucleus: Δ of one sign, up to −log top_p and not farther.

    Where one token is the whole nucleus, that side says 0, and the other does not.
    """
    sides: tuple[tuple[ColumnSide, Tensor, Tensor], ...] = (
        ("infer", both.infer, both.train),
        ("train", both.train, both.infer),
    )
    for side, sure, other in sides:
        gain = sure - other
        alone = sure > -1e-6
        kept = float((-gain.max()).exp())
        one_sided = float(gain.clamp(min=0).sum() / gain.abs().sum())
        near = float((gain > 0.7 * gain.max()).double().mean())
        certain = float((alone & (other < -1e-3)).double().mean())
        if one_sided < 0.97 or near < 0.02 or certain < 0.02 or not 0.3 < kept < 0.999:
            continue
        said = "" if top_ps is None else f"; the dump says top_p = {float(top_ps.median()):g}"
        what = (
            f"{one_sided:.1%} of the difference has one sign, and none of it exceeds {float(gain.max()):.3g} nats = "
            f"−log {kept:.3g}; {certain:.0%} of tokens are certain on one side only{said}"
        )
        cause = "top_p (or top_k) in one side's log-probabilities alone"
        return _fit("renormalised over a nucleus", what, both, one_sided, cause, side=side)
    return None


def _temperature(both: Compared) -> Finding | None:
    """Likely tokens are off one way and unlikely ones the other."""
    fit = fit_temperature(both.train.numpy(), both.infer.numpy())
    if fit is None:
        return None
    return _fit("temperature", fit.what, both, fit.share, "other temperatures on both sides", "scaled or capped logits")


def _constant(both: Compared) -> Finding | None:
    """Every token is off by about the same, one way: two denominators."""
    delta = both.delta
    average, spread = float(delta.mean()), float(delta.std())
    if abs(average) < 1e-3 or spread > 0.5 * abs(average):
        return None
    share = average**2 / float(delta.square().mean())
    what = (
        f"all tokens are off by about {average:+.3g} nats (standard deviation {spread:.2g}), one way; that explains "
        f"{share:.0%} of the squares"
    )
    cause = "another denominator: rows that only pad the vocabulary"
    return _fit("offset", what, both, share, cause, side="train" if average < 0 else "infer")


def _find_retokenised(compared: Compared) -> Finding | None:
    """Some sequences agree up to one token that is off by nats, and calm down behind it; the others agree."""
    sizes = [part.abs() for part in torch.split(compared.delta, compared.lengths.tolist())]
    spiked = [size for size in sizes if size.numel() > 24 and bool((size > _SPIKE).any())]
    calm = torch.cat([size for size in sizes if not bool((size > _SPIKE).any())] or [torch.zeros(0)])
    if len(spiked) < 3 or len(spiked) > 0.9 * len(sizes) or not calm.numel():
        return None
    floor = max(float(calm.mean()), 1e-6)
    marked = sum(_spike_then_decay(size, floor) for size in spiked)
    if marked < 0.7 * len(spiked):
        return None
    what = (
        f"{marked} of {len(sizes)} sequences agree (mean |Δ| {floor:.2g}) up to one token that is off by more than "
        f"{_SPIKE:g} nats, and less and less behind it"
    )
    share = float(sum(size.square().sum() for size in spiked) / compared.delta.square().sum())
    return _fit("other tokens from one place on", what, compared, share, "text that was tokenised again")


def _spike_then_decay(size: Tensor, floor: float) -> bool:
    at = int((size > _SPIKE).nonzero()[0])
    before, behind = size[:at], size[at + 1 : at + 9]
    far = size[at + 9 :]
    agrees = not before.numel() or float(before.mean()) < 3 * floor
    disturbed = behind.numel() > 3 and float(behind.mean()) > 4 * floor
    return agrees and disturbed and (far.numel() < 8 or float(far.mean()) < 0.7 * float(behind.mean()))


def _spikes(compared: Compared) -> Finding | None:
    """Single tokens far off, anywhere in most sequences, between tokens that agree."""
    size = compared.delta.abs().clamp(max=20)
    median, far = float(size.median()), (size > 0.5) & (compared.index > 1)
    kurtosis = float(size.pow(4).mean() / size.square().mean().square())
    rate = float(far.double().mean())
    hit = float((compared.totals(far.double())[:, 0] > 0).double().mean())
    beside = torch.zeros_like(far)
    beside[1:] |= far[:-1]
    clustered = float(far[beside].double().mean()) if bool(beside.any()) else 1.0
    if median > 0.05 or kurtosis < 100 or not 1e-3 < rate < 0.05 or hit < 0.5 or clustered > 0.1:
        return None
    what = (
        f"{rate:.2%} of tokens are off by more than 0.5 nats, scattered over {hit:.0%} of the sequences, while half of "
        f"all are within {median:.2g} (kurtosis {kurtosis:.0f})"
    )
    share = float(size[far].square().sum() / size.square().sum())
    return _fit("scattered spikes", what, compared, share, "in a mixture of experts, another choice of experts")


def _staleness(compared: Compared, versions: Tensor | None) -> Finding | None:
    """Sequences generated with older weights are off by more; that is asynchrony, and no fault of either side."""
    if versions is None or versions.unique().numel() < 2:
        return None
    present = compared.lengths > 0
    sums = torch.zeros(present.numel(), dtype=torch.float64)
    sums.index_add_(0, compared.row, compared.delta.abs().clamp(max=3))
    size = sums[present] / compared.lengths[present]
    age = (versions.max() - versions)[present]
    together = float(torch.corrcoef(torch.stack([age, size]))[0, 1])
    newest, oldest = float(size[age == 0].mean()), float(size[age == age.max()].mean())
    if not together > 0.6 or oldest < 2 * newest:
        return None
    what = (
        f"mean |Δ| is {newest:.2g} for the newest weights and {oldest:.2g} for those {float(age.max()):g} versions "
        f"older (correlation {together:.2f})"
    )
    cause = "asynchronous rollouts, which break nothing"
    return _fit("grows with the age of the weights", what, compared, together**2, cause)
