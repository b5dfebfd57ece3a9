"""What the differences of a dump look like, where they clearly look like something. No model is asked.

A fingerprint is never more than consistent with a cause: other causes may leave the same. So each is asked for several
marks at once, and where they are not all there, nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from lockstep.doctor.base import Side
from lockstep.doctor.dump import Dump
from lockstep.doctor.statistics import Compared, by_surprise

_LAGS = (-2, -1, 1, 2)
_LEAST_TOKENS = 200
_LEAST_SEQUENCES = 8
_SPIKE = 2.0  # nats
_BINS = 16


@dataclass(frozen=True)
class Reading:
    """What a dump looks like.

    Attributes:
        what: In a few words.
        causes: Names in `CAUSES` that leave this, the likeliest first; empty: nothing is broken.
        evidence: What was seen.
        side: Whose numbers show it; None: that cannot be told.
    """

    what: str
    causes: tuple[str, ...]
    evidence: str
    side: Side | None = None


def read(dump: Dump) -> list[Reading]:
    """All fingerprints that clearly fit; a lag hides every other one."""
    compared = dump.compared.select(dump.compared.supported)
    if compared.train.numel() < _LEAST_TOKENS or not bool(compared.delta.any()):
        return []
    if (lag := _lag(compared)) is not None:
        return [lag]
    found = (fingerprint(replace(dump, compared=compared)) for fingerprint in _FINGERPRINTS)
    return [reading for reading in found if reading is not None]


def _lag(compared: Compared) -> Reading | None:
    """One side's numbers belong to the neighbours of the other's tokens."""
    left = {lag: _spread_at(compared, lag) for lag in (0, *_LAGS)}
    best = min(left, key=lambda lag: left[lag])
    if best == 0 or left[best] > 0.1 * left[0]:
        return None
    evidence = (
        f"training's log-probability of each token is inference's of the token {-best:+d} from it: that leaves "
        f"{left[best] / left[0]:.1%} of the difference's mean square"
    )
    return Reading("shifted", ("off_by_one",), evidence)


def _spread_at(compared: Compared, lag: int) -> float:
    """Mean square difference of training at t + lag and inference at t, within sequences."""
    there = torch.arange(compared.train.numel()) + lag
    inside = (there >= 0) & (there < there.numel())
    there = there.clamp(0, there.numel() - 1)
    inside &= compared.row[there] == compared.row
    inside &= compared.position[there] == compared.position + lag
    difference = (compared.train[there] - compared.infer)[inside]
    return float(difference.square().mean()) if difference.numel() else math.inf


def _first_token(dump: Dump) -> Reading | None:
    """Most sequences are off at their first token, and none of them is elsewhere."""
    both = dump.compared
    size, first = both.delta.abs(), both.index == 1
    if int(first.sum()) < _LEAST_SEQUENCES or int((~first).sum()) < _LEAST_TOKENS:
        return None
    rest = size[~first]
    usual = float(rest.sort().values[int(0.99 * rest.numel())])
    off = float((size[first] > max(2 * usual, 0.02)).double().mean())
    share = float(size[first].clamp(max=3).square().sum() / size.clamp(max=3).square().sum())
    if off < 0.5 or share < 0.7:
        return None
    evidence = (
        f"{off:.0%} of first tokens are off by more than twice what 99 % of all others are ({usual:.2g} nats); they "
        f"carry {share:.0%} of the squares"
    )
    return Reading("first token only", ("first_token",), evidence)


def _stepwise(dump: Dump) -> Reading | None:
    """Differences are small up to a position, and large from there on; or they grow all the way."""
    position, typical = _profile(dump.compared)
    if not position:
        return None
    for edge in range(2, len(typical) - 2):
        before, behind = max(typical[:edge]), min(typical[edge:])
        if behind > 4 * before + 1e-6:
            evidence = (
                f"the typical |Δ| is at most {before:.2g} nats before position {position[edge]}, and at least "
                f"{behind:.2g} from there on"
            )
            return Reading("step at a position", ("sliding_window",), evidence)
    quarter = len(typical) // 4
    first, last = sum(typical[:quarter]) / quarter, sum(typical[-quarter:]) / quarter
    falls = sum(later < 0.8 * sooner for sooner, later in pairwise(typical))
    if last < 4 * first + 1e-6 or falls > 1:
        return None
    evidence = f"the typical |Δ| grows from {first:.2g} in the first quarter of positions to {last:.2g} in the last"
    return Reading("grows with position", ("rope", "kv_precision", "decode_kernel"), evidence)


def _profile(compared: Compared) -> tuple[list[int], list[float]]:
    """Typical |Δ| by position, in bins of equally many tokens: |Δ| over what tokens so surprising usually have.

    Returns:
        First position of each bin, and the median |Δ| in it, nats, at the surprise of all.
    """
    size = compared.delta.abs()
    order = compared.position.argsort(stable=True)
    if order.numel() < _BINS * 40:
        return [], []
    usual = torch.ones_like(size)
    surprise = (-compared.infer).argsort(stable=True)
    for part in surprise.tensor_split(8):
        usual[part] = size[part].mean().clamp(min=1e-12)
    level = size / usual * size.mean()
    bins = order.tensor_split(_BINS)
    return [int(compared.position[part[0]]) for part in bins], [float(level[part].median()) for part in bins]


def _one_way(dump: Dump) -> Reading | None:
    """Δ of one sign: a nucleus, or else another denominator."""
    return _top_p(dump) or _constant(dump)


def _top_p(dump: Dump) -> Reading | None:
    """One side's numbers are renormalised over a nucleus: Δ of one sign, up to −log top_p and not farther.

    Where one token is the whole nucleus, that side says 0, and the other does not.
    """
    both = dump.compared
    for side, sure, other in (("infer", both.infer, both.train), ("train", both.train, both.infer)):
        gain = sure - other
        alone = sure > -1e-6
        kept = float((-gain.max()).exp())
        one_sided = float(gain.clamp(min=0).sum() / gain.abs().sum())
        near = float((gain > 0.7 * gain.max()).double().mean())
        certain = float((alone & (other < -1e-3)).double().mean())
        if one_sided < 0.97 or near < 0.02 or certain < 0.02 or not 0.3 < kept < 0.999:
            continue
        said = "" if dump.top_p is None else f"; the dump says top_p = {float(dump.top_p.median()):g}"
        evidence = (
            f"{one_sided:.1%} of the difference has one sign, and none of it exceeds {float(gain.max()):.3g} nats = "
            f"−log {kept:.3g}; {certain:.0%} of tokens are certain on one side only{said}"
        )
        return Reading("renormalised over a nucleus", ("top_p",), evidence, "infer" if side == "infer" else "train")
    return None


def _temperature(dump: Dump) -> Reading | None:
    """Likely tokens are off one way and unlikely ones the other, along a line in log-probability."""
    both = dump.compared
    delta = both.delta
    x = both.infer - both.infer.mean()
    slope = float((x * delta).sum() / x.square().sum().clamp(min=1e-12))
    explained = float((slope * x).square().sum() / (delta - delta.mean()).square().sum().clamp(min=1e-12))
    parts = [float(part.delta.mean()) for part in by_surprise(both).values() if part.train.numel() >= 20]
    turns = len(parts) >= 3 and parts[0] * parts[-1] < 0
    if abs(slope) < 0.03 or explained < 0.2 or not turns:
        return None
    causes = ("temperature",) if _tempered(dump) else ("temperature", "softcap")
    evidence = (
        f"Δ follows the log-probability with a slope of {slope:+.2f} ({explained:.0%} of its variance); its mean is "
        f"{parts[0]:+.2g} nats for the likeliest tokens and {parts[-1]:+.2g} for the least likely: about as if "
        f"training's temperature were {1 / (1 + slope):.2f} times inference's"
    )
    return Reading("temperature", causes, evidence)


def _tempered(dump: Dump) -> bool:
    return dump.temperature is not None and bool((dump.temperature != 1).any())


def _constant(dump: Dump) -> Reading | None:
    """Every token is off by about the same, one way: two denominators."""
    delta = dump.compared.delta
    average, spread = float(delta.mean()), float(delta.std())
    if abs(average) < 1e-3 or spread > 0.5 * abs(average):
        return None
    side: Side = "train" if average < 0 else "infer"
    evidence = f"all tokens are off by about {average:+.3g} nats (standard deviation {spread:.2g}), one way"
    return Reading("another denominator", ("padded_vocabulary",), evidence, side)


def _retokenised(dump: Dump) -> Reading | None:
    """Some sequences agree up to one token that is off by nats, and calm down behind it; the others agree."""
    compared = dump.compared
    sizes = [part.abs() for part in torch.split(compared.delta, compared.lengths.tolist())]
    spiked = [size for size in sizes if size.numel() > 24 and bool((size > _SPIKE).any())]
    calm = torch.cat([size for size in sizes if not bool((size > _SPIKE).any())] or [torch.zeros(0)])
    if len(spiked) < 3 or len(spiked) > 0.9 * len(sizes) or not calm.numel():
        return None
    floor = max(float(calm.mean()), 1e-6)
    marked = sum(_spike_then_decay(size, floor) for size in spiked)
    if marked < 0.7 * len(spiked):
        return None
    evidence = (
        f"{marked} of {len(sizes)} sequences agree (mean |Δ| {floor:.2g}) up to one token that is off by more than "
        f"{_SPIKE:g} nats, and less and less behind it"
    )
    return Reading("other tokens from one place on", ("retokenised",), evidence)


def _spike_then_decay(size: Tensor, floor: float) -> bool:
    at = int((size > _SPIKE).nonzero()[0])
    before, behind = size[:at], size[at + 1 : at + 9]
    far = size[at + 9 :]
    agrees = not before.numel() or float(before.mean()) < 3 * floor
    disturbed = behind.numel() > 3 and float(behind.mean()) > 4 * floor
    return agrees and disturbed and (far.numel() < 8 or float(far.mean()) < 0.7 * float(behind.mean()))


def _held_in_bf16(dump: Dump) -> Reading | None:
    """Log-probabilities that are themselves numbers of eight binary digits.

    Logits in bf16 leave no such trace: the sums of their exponentials, where they round differently, smear it.
    """
    short = {"train": _in_bf16(dump.compared.train), "infer": _in_bf16(dump.compared.infer)}
    sides: list[Side] = [side for side in ("train", "infer") if short[side] > 0.99]
    if not sides:
        return None
    evidence = f"{min(short[side] for side in sides):.1%} of the log-probabilities are exactly numbers of bf16"
    only = sides[0] if len(sides) == 1 else None
    return Reading("log-probabilities in bf16", ("softmax_precision",), evidence, only)


def _in_bf16(column_M: Tensor) -> float:
    said = column_M[column_M < -1e-3]
    return float((said == said.bfloat16().double()).double().mean()) if said.numel() >= _LEAST_TOKENS else 0.0


def _spikes(dump: Dump) -> Reading | None:
    """Single tokens far off, anywhere in most sequences, between tokens that agree."""
    compared = dump.compared
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
    evidence = (
        f"{rate:.2%} of tokens are off by more than 0.5 nats, scattered over {hit:.0%} of the sequences, while half of "
        f"all are within {median:.2g} (kurtosis {kurtosis:.0f})"
    )
    return Reading("scattered spikes", ("routing",), evidence)


def _staleness(dump: Dump) -> Reading | None:
    """Sequences drawn with older weights are off by more; that is asynchrony, and no fault of either side."""
    if dump.version is None or dump.version.unique().numel() < 2:
        return None
    compared = dump.compared
    present = compared.lengths > 0
    sums = torch.zeros(present.numel(), dtype=torch.float64)
    sums.index_add_(0, compared.row, compared.delta.abs().clamp(max=3))
    size = sums[present] / compared.lengths[present]
    age = (dump.version.max() - dump.version)[present]
    together = float(torch.corrcoef(torch.stack([age, size]))[0, 1])
    newest, oldest = float(size[age == 0].mean()), float(size[age == age.max()].mean())
    if not together > 0.6 or oldest < 2 * newest:
        return None
    evidence = (
        f"mean |Δ| is {newest:.2g} for the newest weights and {oldest:.2g} for those {float(age.max()):g} versions "
        f"older (correlation {together:.2f})"
    )
    return Reading("grows with the age of the weights", (), evidence)


_FINGERPRINTS: tuple[Callable[[Dump], Reading | None], ...] = (
    _first_token,
    _retokenised,
    _one_way,
    _temperature,
    _stepwise,
    _held_in_bf16,
    _spikes,
    _staleness,
)
