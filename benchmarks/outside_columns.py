"""Faults of columns that no single feature of the doctor's search describes: written before its code was read.

    python -m benchmarks.outside_columns --count 5 --seed 1

Each way says which tokens are damaged by something that a dump shows at most indirectly: what stood before a token, how
uncertain the model was, which turn it is in, chance. The damage is drawn as in `benchmarks.doctor_columns`. A rule with
precision and recall of at least 0.95 counts as found; with one of either below, as partial; a finding whose rule holds
fewer than half of damaged tokens at a precision under a half, as wrong. Findings that give no rule, and silence, are
counted too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.doctor_columns import Bools, Fault, Floats, Pair, damage, make_pair, score
from lockstep_doctor.column import Finding, examine_columns

Rng = np.random.Generator


def _after_an_id(pair: Pair, rng: Rng) -> Bools:
    """All that follows the first occurrence of one id in its row: a state that a special token spoils."""
    chosen = rng.choice(pair.ids.numpy())
    met = np.zeros(pair.row.size, bool)
    for row in np.unique(pair.row):
        mine = np.flatnonzero(pair.row == row)
        met[mine] = np.cumsum(pair.ids.numpy()[mine] == chosen) > (pair.ids.numpy()[mine] == chosen)
    return met


def _behind_an_id(pair: Pair, rng: Rng) -> Bools:
    """The token right after one of three ids: a cache entry that is wrong for them."""
    ids = pair.ids.numpy()
    before = np.concatenate([[-1], ids[:-1]])
    return np.isin(before, rng.choice(ids, 3)) & (pair.place > 0)


def _repeated(pair: Pair, _: Rng) -> Bools:
    """Ids that the row already holds: a repetition penalty on one side."""
    seen = np.zeros(pair.row.size, bool)
    for row in np.unique(pair.row):
        mine = np.flatnonzero(pair.row == row)
        first = np.unique(pair.ids.numpy()[mine], return_index=True)[1]
        seen[np.delete(mine, first)] = True
    return seen


def _turn(pair: Pair) -> NDArray[np.int64]:
    """The number of the turn of each compared token, from 0."""
    mask = pair.columns.mask.numpy()
    entry = np.flatnonzero(mask)
    breaks = (np.diff(entry, prepend=entry[0]) > 1) & (pair.place > 0)
    starts = np.cumsum(breaks)
    return starts - starts[np.searchsorted(pair.row, pair.row)]


def _second_turn(pair: Pair, _: Rng) -> Bools:
    """Every token behind a tool's output."""
    return _turn(pair) > 0


def _turn_start(pair: Pair, _: Rng) -> Bools:
    """The first eight tokens of each turn, the first turn among them."""
    entry = np.flatnonzero(pair.columns.mask.numpy())
    fresh = (np.diff(entry, prepend=-5) > 1) | (pair.place == 0)
    since = np.arange(entry.size) - np.maximum.accumulate(np.where(fresh, np.arange(entry.size), 0))
    return since < 8


def _uncertain(pair: Pair, rng: Rng) -> Bools:
    """Tokens where the distribution is flat, by its entropy and not by what was sampled."""
    logs = pair.logits.log_softmax(1)
    entropy = -(logs.exp() * logs).sum(1).numpy()
    return entropy > np.quantile(entropy, rng.uniform(0.5, 0.9))


def _some_ids(pair: Pair, rng: Rng) -> Bools:
    """A twelfth of the vocabulary, strewn: embedding rows that were not sent."""
    return np.isin(pair.ids.numpy(), rng.choice(120, 10, replace=False))


def _checkerboard(pair: Pair, _: Rng) -> Bools:
    """Even rows at odd places and odd rows at even places."""
    return (pair.row + pair.place) % 2 == 1


def _long_rows(pair: Pair, rng: Rng) -> Bools:
    """Rows whose response is longer than a bound: another kernel, or a context that was cut."""
    return pair.lengths[pair.row] > np.quantile(pair.lengths, rng.uniform(0.4, 0.8))


def _chance(pair: Pair, rng: Rng) -> Bools:
    """Every token with a chance of 7 %: no rule is true."""
    return rng.random(pair.row.size) < 0.07


def _some_rows(pair: Pair, rng: Rng) -> Bools:
    """A third of the rows, by chance: those that one worker of several computed."""
    return np.isin(pair.row, np.flatnonzero(rng.random(pair.lengths.size) < 0.33))


def _growing(pair: Pair, rng: Rng) -> tuple[str, Bools, Floats]:
    """An error that grows with the place in the response: every token is hit, late ones harder."""
    infer = pair.columns.infer[pair.columns.mask].numpy()
    slope = float(10 ** rng.uniform(-3, -1.7))
    return f"offset of {slope:.2g} for each place", pair.place > 0, infer - slope * pair.place.astype(float)


def _reversed_rows(pair: Pair, rng: Rng) -> tuple[str, Bools, Floats]:
    """Values of some rows in reverse order: an assignment that is no shift."""
    infer = pair.columns.infer[pair.columns.mask].numpy().copy()
    hit = np.isin(pair.row, rng.choice(pair.lengths.size, max(1, pair.lengths.size // 4), replace=False))
    ends = np.cumsum(pair.lengths)
    infer[hit] = infer[(ends[pair.row] - 1 - pair.place)[hit]]
    return "rows in reverse", hit, infer


PLACES: dict[str, Callable[[Pair, Rng], Bools]] = {
    "all behind the first of an id": _after_an_id,
    "right behind one of three ids": _behind_an_id,
    "ids the row already holds": _repeated,
    "the second turn": _second_turn,
    "first 8 of each turn": _turn_start,
    "flat distributions": _uncertain,
    "ten ids, strewn": _some_ids,
    "checkerboard": _checkerboard,
    "long responses": _long_rows,
    "7 % by chance": _chance,
    "a third of the rows by chance": _some_rows,
}
WHOLE: dict[str, Callable[[Pair, Rng], tuple[str, Bools, Floats]]] = {
    "grows with the place": _growing,
    "rows in reverse": _reversed_rows,
}
"""Ways that say themselves what the damage is."""


def draw_outside(way: str, seed: int) -> Fault:
    """A fault of one way, by the seed alone; drawn again where it changes too few of its tokens."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        pair = make_pair(int(rng.integers(1 << 30)))
        before = pair.columns.infer[pair.columns.mask].numpy()
        if way in WHOLE:
            what, hit, after = WHOLE[way](pair, rng)
        else:
            hit = PLACES[way](pair, rng)
            what, after = damage(pair, hit, rng)
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(np.abs(after - before), nan=1e3, posinf=1e3)
        if hit.sum() < 10 or np.mean(change[hit] > 0) < 0.5:
            continue
        off = float((pair.columns.train - pair.columns.infer)[pair.columns.mask].abs().median())
        infer = pair.columns.infer.clone()
        infer[pair.columns.mask] = torch.from_numpy(after)
        columns = replace(pair.columns, infer=infer)
        return Fault(way, what, columns, hit, float(np.median(change[hit]) / max(off, 1e-9)))
    raise RuntimeError(f"{way}, seed {seed}: no fault changes anything")


@dataclass(frozen=True)
class Outcome:
    """What was said of a fault: `verdict` is found, partial, wrong, no rule, or silent."""

    verdict: str
    precision: float
    recall: float


def judge(fault: Fault, findings: Sequence[Finding]) -> Outcome:
    """The verdict on the best rule."""
    best = score(fault, findings)
    if not findings:
        return Outcome("silent", 0.0, 0.0)
    if all(one.where is None for one in findings):
        return Outcome("no rule", 0.0, 0.0)
    if best.is_found:
        return Outcome("found", best.precision, best.recall)
    is_wrong = best.precision < 0.5 and best.recall < 0.5
    return Outcome("wrong" if is_wrong else "partial", best.precision, best.recall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5, help="faults of each way")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| way | damage | size in floors | verdict | precision | recall | rules |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    tally: dict[str, int] = dict.fromkeys(("found", "partial", "wrong", "no rule", "silent"), 0)
    for place, way in enumerate([*PLACES, *WHOLE]):
        for number in range(options.count):
            fault = draw_outside(way, options.seed * 100_003 + 1000 * place + number)
            findings = examine_columns(fault.columns)
            outcome = judge(fault, findings)
            tally[outcome.verdict] += 1
            rules = "; ".join(f"{one.kind}: {one.where}" for one in findings)
            print(
                f"| {way} ({fault.hit.sum()} of {fault.hit.size}) | {fault.damage} | {fault.size:.2g} "
                f"| {outcome.verdict} | {outcome.precision:.2f} | {outcome.recall:.2f} | {rules[:150] or 'nothing'} |",
                flush=True,
            )
    print(tally)


if __name__ == "__main__":
    main()
