"""How well does the doctor read two columns of log-probabilities without a model?

    python -m benchmarks.doctor_columns --count 80 --seed 1

Faults are drawn at random: a predicate over tokens, a damage to one side's values there, and its size. Nobody wrote the
list. For each: did a finding's rule hold the damaged tokens (precision and recall of at least 0.95), and, where the
damage is one that exact tests can name, was it named? Clean pairs (rounding as of fp32 and bf16, temperatures applied
on both sides alike) must give no finding; with `--model FOLDER` half of them are a model's, read in fp32 and in bf16.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from lockstep_doctor.column import Finding, TokenColumns, examine_columns
from lockstep_doctor.column.columns import RowFact, list_features

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

VOCABULARY = 120


@dataclass(frozen=True)
class Pair:
    """Two clean sides, with what damages need of the distributions behind one of them.

    Attributes:
        columns: Both sides, and what a dump says besides.
        logits: Of the inference side at every compared token, [M, V].
        ids: The compared tokens, [M].
        row: Of each compared token, [M].
        place: In its row, from 0, [M].
        lengths: Compared tokens of each row, [B].
    """

    columns: TokenColumns
    logits: Tensor
    ids: Tensor
    row: NDArray[np.int64]
    place: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class Fault:
    """A damage that was drawn.

    Attributes:
        where: The predicate, in words.
        damage: Its kind, and size.
        columns: The pair with it.
        hit: The damaged tokens among those compared, [M].
        size: Median |change| of the damaged values over the median |Δ| of the clean pair.
    """

    where: str
    damage: str
    columns: TokenColumns
    hit: Bools
    size: float


def make_pair(seed: int, temperature: float = 1.0) -> Pair:
    """Rows of all lengths with prompts, some with several turns, sampled from random logits of every entropy."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    rows = int(rng.integers(12, 49))
    prompts, responses = rng.integers(3, 40, rows), rng.integers(24, 140, rows)
    mask_rows = [_mask(rng, int(p), int(r), bool(rng.random() < 0.3)) for p, r in zip(prompts, responses, strict=True)]
    mask = np.concatenate(mask_rows)
    lengths = np.array([int(one.sum()) for one in mask_rows])
    tokens = int(mask.sum())
    sharp = torch.empty(tokens, 1, dtype=torch.float64).uniform_(0.3, 7.0, generator=generator)
    rank = torch.arange(1, VOCABULARY + 1, dtype=torch.float64)
    logits = sharp * torch.randn(tokens, VOCABULARY, dtype=torch.float64, generator=generator) - rank.log()
    probability = (logits / temperature).softmax(1)
    ids = torch.multinomial(probability, 1, generator=generator)[:, 0]
    in_bf16 = bool(rng.random() < 0.5)
    size = float(10 ** (rng.uniform(-3, -1.7) if in_bf16 else rng.uniform(-6.5, -5)))
    heavy = torch.exp(0.7 * torch.randn(tokens, 1, dtype=torch.float64, generator=generator))

    def side() -> Tensor:
        noise = size * heavy * torch.randn(tokens, VOCABULARY, dtype=torch.float64, generator=generator)
        return ((logits + noise) / temperature).log_softmax(1).gather(1, ids[:, None])[:, 0].float().double()

    entries, compared = mask.size, torch.from_numpy(mask)
    train, infer = (torch.zeros(entries, dtype=torch.float64) for _ in range(2))
    train[compared], infer[compared] = side(), side()
    all_ids = torch.randint(0, VOCABULARY, (entries,), generator=generator)
    all_ids[compared] = ids
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum([one.size for one in mask_rows])]))
    facts: dict[RowFact, Tensor] = {}
    if rng.random() < 0.5:
        facts["weight version"] = torch.from_numpy(rng.integers(5, 8, rows).astype(float))
    columns = TokenColumns(train, infer, compared, offsets, all_ids, facts)
    row = np.repeat(np.arange(rows), lengths)
    place = np.arange(tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Pair(columns, logits / temperature, ids, row, place, lengths)


def _mask(rng: np.random.Generator, prompt: int, response: int, turns: bool) -> Bools:
    """Which entries of a row were generated; a second turn follows some tokens of a tool."""
    parts = [np.zeros(prompt, bool), np.ones(response, bool)]
    if turns:
        parts += [np.zeros(int(rng.integers(4, 12)), bool), np.ones(int(rng.integers(12, 60)), bool)]
    return np.concatenate(parts)


def draw_predicate(pair: Pair, rng: np.random.Generator) -> tuple[str, Bools]:
    """One or two conditions that hold for 10 tokens to 60 % of them."""
    features = {feature.name: feature.values for feature in list_features(pair.columns)}
    features.pop("inference's log-probability")
    names = list(features)
    while True:
        chosen = rng.choice(names, int(rng.choice([1, 1, 2])), replace=False)
        words, hit = list[str](), np.ones(pair.row.size, bool)
        for name in chosen:
            word, one = _draw_condition(str(name), features[str(name)], rng)
            words, hit = [*words, word], hit & one
        if max(10, 0.003 * hit.size) <= hit.sum() <= 0.6 * hit.size:
            return " and ".join(words), hit


def _draw_condition(name: str, values: Floats | NDArray[np.int64], rng: np.random.Generator) -> tuple[str, Bools]:
    value = rng.choice(values)
    counts = name in ("row", "position", "place in the response", "places before the last token", "place in the batch")
    match int(rng.integers(0, 5 if counts else 3)):
        case 0:
            return f"{name} ≥ {value:.4g}", values >= value
        case 1:
            return f"{name} ≤ {value:.4g}", values <= value
        case 2:
            return f"{name} = {value:.4g}", values == value
        case 3:
            modulus = int(rng.choice([2, 3, 4, 5, 7, 8, 16, 32]))
            return f"{name} mod {modulus} = {value % modulus}", values % modulus == value % modulus
        case _:
            other = rng.choice(values)
            low, high = min(value, other), max(value, other)
            return f"{low:.4g} ≤ {name} ≤ {high:.4g}", (values >= low) & (values <= high)


def damage(pair: Pair, hit: Bools, rng: np.random.Generator) -> tuple[str, Floats]:
    """A damage to the inference side's values of the hit tokens. Returns its kind with its size, and all values."""
    infer = pair.columns.infer[pair.columns.mask].numpy().copy()
    kind = str(rng.choice([*_FORMULAS, "shift", "other row", "noise", "temperature", "top_p", "other id"]))
    if kind in _FORMULAS:
        formula = _FORMULAS[kind](rng)
        infer[hit] = formula[1](infer[hit])
        return f"{kind} {formula[0]}".strip(), infer
    where = np.flatnonzero(hit)
    if kind in ("shift", "other row"):
        step = int(rng.choice([-3, -2, -1, 1, 2, 3]))
        return f"{kind} {step:+d}", _move(pair, infer, where, step, kind == "shift")
    logits, ids = pair.logits[where], pair.ids[where, None]
    size = float(10 ** rng.uniform(-1.5, 0.3))
    if kind == "noise":
        infer[where] = np.minimum(infer[where] + size * rng.standard_normal(where.size), -1e-6 * rng.random(where.size))
        return f"noise {size:.2g}", infer
    if kind == "temperature":
        size = float(rng.choice([0.5, 0.7, 0.9, 1.1, 1.4, 2.0]))
        infer[where] = (logits / size).log_softmax(1).gather(1, ids)[:, 0].numpy()
        return f"temperature {size:g}", infer
    if kind == "top_p":
        size = float(rng.choice([0.8, 0.9, 0.95]))
        ordered = logits.softmax(1).sort(1, descending=True).values
        kept = (ordered.cumsum(1) - ordered < size).sum(1) - 1
        floor = ordered.gather(1, kept[:, None])
        outside = logits.softmax(1) < floor.clamp(max=logits.softmax(1).gather(1, ids))
        infer[where] = logits.masked_fill(outside, -math.inf).log_softmax(1).gather(1, ids)[:, 0].numpy()
        return f"top_p {size:g}", infer
    moved = (ids + int(rng.integers(1, VOCABULARY))) % VOCABULARY
    infer[where] = logits.log_softmax(1).gather(1, moved)[:, 0].numpy()
    return "other id", infer


def _constant(rng: np.random.Generator) -> tuple[str, Callable[[Floats], Floats]]:
    value = round(float(-rng.uniform(0.1, 12)), 3)
    return f"{value:g}", lambda x: np.full_like(x, value)


def _offset(rng: np.random.Generator) -> tuple[str, Callable[[Floats], Floats]]:
    value = float(rng.choice([-1, 1]) * 10 ** rng.uniform(-1.5, 0.5))
    return f"{value:+.2g}", lambda x: x + value


def _factor(rng: np.random.Generator) -> tuple[str, Callable[[Floats], Floats]]:
    value = float(np.exp(rng.choice([-1, 1]) * rng.uniform(0.1, 1)))
    return f"{value:.2g}", lambda x: x * value


def _decimals(rng: np.random.Generator) -> tuple[str, Callable[[Floats], Floats]]:
    digits = int(rng.integers(1, 5))
    return f"{digits}", lambda x: np.round(x, digits)


_FORMULAS: dict[str, Callable[[np.random.Generator], tuple[str, Callable[[Floats], Floats]]]] = {
    "zero": lambda _: ("", np.zeros_like),
    "constant": _constant,
    "minus infinity": lambda _: ("", lambda x: np.full_like(x, -math.inf)),
    "bf16": lambda _: ("", lambda x: torch.from_numpy(x).bfloat16().double().numpy()),
    "fp16": lambda _: ("", lambda x: x.astype(np.float16).astype(float)),
    "decimals": _decimals,
    "negated": lambda _: ("", np.negative),
    "probability": lambda _: ("", np.exp),
    "base 2": lambda _: ("", lambda x: x / math.log(2)),
    "base 10": lambda _: ("", lambda x: x / math.log(10)),
    "offset": _offset,
    "factor": _factor,
}


def _move(pair: Pair, infer: Floats, where: NDArray[np.int64], step: int, is_shift: bool) -> Floats:
    """Values of the token some places on in the row, or at the same place some rows on; the last one's at an end."""
    row, place = pair.row[where], pair.place[where]
    row = row if is_shift else (row + step) % pair.lengths.size
    place = np.clip(place + step * is_shift, 0, pair.lengths[row] - 1)
    moved = infer.copy()
    moved[where] = infer[(np.cumsum(pair.lengths) - pair.lengths)[row] + place]
    return moved


def clamp(pair: Pair, rng: np.random.Generator) -> tuple[str, Bools, Floats]:
    """A floor under one side's values: the tokens below it are hit."""
    infer = pair.columns.infer[pair.columns.mask].numpy()
    floor = float(np.round(np.quantile(infer, rng.uniform(0.02, 0.3)), 2))
    return f"floor {floor:g}", infer < floor, np.maximum(infer, floor)


def draw_fault(seed: int) -> Fault:
    """A fault that depends on the seed alone; drawn again where it changes nothing on its tokens."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        pair = make_pair(int(rng.integers(1 << 30)))
        before = pair.columns.infer[pair.columns.mask].numpy()
        if rng.random() < 0.06:
            what, hit, after = clamp(pair, rng)
            where = "inference's log-probability < the floor"
        else:
            where, hit = draw_predicate(pair, rng)
            what, after = damage(pair, hit, rng)
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(np.abs(after - before), nan=1e3, posinf=1e3)
        if np.mean(change[hit] > 0) < 0.5:
            continue
        off = (pair.columns.train - pair.columns.infer)[pair.columns.mask].abs().median()
        infer = pair.columns.infer.clone()
        infer[pair.columns.mask] = torch.from_numpy(after)
        columns = replace(pair.columns, infer=infer)
        return Fault(where, what, columns, hit, float(np.median(change[hit]) / max(float(off), 1e-9)))
    raise RuntimeError(f"seed {seed}: no fault changes anything")


_NAMES = {
    "zero": ("exactly 0",),
    "constant": ("constant", "floor", "ceiling"),
    "minus": ("not finite",),
    "floor": ("floor",),
    "bf16": ("numbers of bf16",),
    "fp16": ("numbers of fp16",),
    "decimals": ("numbers of",),
    "negated": ("sign turned",),
    "probability": ("probabilities",),
    "base 2": ("base 2",),
    "base 10": ("base 10",),
    "offset": ("offset",),
    "factor": ("scaled", "base 2", "base 10"),
    "shift": ("positions moved",),
    "other row": ("rows moved",),
}
"""By the beginning of a damage, what its finding must say; other damages have no exact test."""


def expected(fault: Fault) -> tuple[str, ...]:
    """What a finding must say to have named the damage; empty where no exact test could."""
    return next((words for begin, words in _NAMES.items() if fault.damage.startswith(begin)), ())


@dataclass(frozen=True)
class Score:
    """What was found of one fault.

    Attributes:
        precision: Of the finding whose rule fits best.
        recall: Of the same.
        is_named: It says what the damage was; None where no exact test could.
        findings: How many there are.
    """

    precision: float
    recall: float
    is_named: bool | None
    findings: int

    @property
    def is_found(self) -> bool:
        """True where both are at least 0.95."""
        return min(self.precision, self.recall) >= 0.95


def score(fault: Fault, findings: Sequence[Finding]) -> Score:
    """The rule that holds the damaged tokens best, and whether its finding names the damage."""
    features = {feature.name: feature for feature in list_features(fault.columns)}
    best = Score(0.0, 0.0, False if expected(fault) else None, len(findings))
    for one in findings:
        if one.where is None:
            continue
        held = one.where.holds(features)
        both = float((held & fault.hit).sum())
        precision, recall = both / max(1, held.sum()), both / fault.hit.sum()
        if min(precision, recall) > min(best.precision, best.recall):
            said = f"{one.kind} {one.what}"
            named = any(word in said for word in expected(fault)) if expected(fault) else None
            best = Score(precision, recall, named, len(findings))
    return best


def run_faults(count: int, seed: int) -> Iterator[tuple[Fault, Score]]:
    """Yields faults with their scores, and prints a row for each."""
    print("| seed | damaged tokens | damage | size in floors | found | precision | recall | named | findings |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for number in range(count):
        fault = draw_fault(seed * 100_003 + number)
        findings = examine_columns(fault.columns)
        found = score(fault, findings)
        rules = "; ".join(f"{one.kind}: {one.where}" for one in findings)
        print(
            f"| {number} | {fault.where} ({fault.hit.sum()} of {fault.hit.size}) | {fault.damage} | {fault.size:.2g} "
            f"| {rules[:150] or 'nothing'} | {found.precision:.2f} | {found.recall:.2f} | {found.is_named} "
            f"| {found.findings} |",
            flush=True,
        )
        yield fault, found


@dataclass(frozen=True)
class Reader:
    """A model in fp32 and in bf16."""

    exact: PreTrainedModel
    short: PreTrainedModel

    @torch.no_grad()
    def make_columns(self, seed: int, temperature: float) -> TokenColumns:
        """What both say of rows that the first one sampled; by chance the second is the first one in another batch."""
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        rows, length = int(rng.integers(12, 33)), int(rng.integers(48, 129))
        ids = torch.full((rows, 1), int(self.exact.config.bos_token_id or 1))
        cache: DynamicCache = DynamicCache()
        while ids.shape[1] < length:
            logits = self.exact(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True).logits[:, -1]
            ids = torch.cat([ids, torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)], 1)
        other = self.short if rng.random() < 0.6 else self.exact
        train, infer = torch.zeros(rows, length), torch.zeros(rows, length)
        train[:, 1:] = _score(self.exact(input_ids=ids).logits, ids, temperature)
        infer[:, 1:] = torch.cat([_score(other(input_ids=one[None]).logits, one[None], temperature) for one in ids])
        mask = (torch.arange(length) > 0).expand(rows, -1).flatten()
        offsets = torch.arange(rows + 1) * length
        return TokenColumns(train.flatten().double(), infer.flatten().double(), mask, offsets, ids.flatten())


def _score(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    scored = (logits[:, :-1].float() / temperature).log_softmax(2)
    return scored.gather(2, ids[:, 1:, None])[..., 0]


def run_clean(count: int, seed: int, reader: Reader | None) -> int:
    """Counts the clean pairs that give a finding, and prints what it was."""
    wrong = 0
    for number in range(count):
        temperature, own = (1.0, 1.0, 0.7, 1.3)[number // 2 % 4], seed * 100_003 + 50_000 + number
        read = reader if number % 2 == 1 else None
        columns = make_pair(own, temperature).columns if read is None else read.make_columns(own, temperature)
        findings = examine_columns(columns)
        wrong += bool(findings)
        for one in findings:
            print(
                f"false: pair {number}, T={temperature}, model {read is not None}: {one.kind}: {one.where}: {one.what}"
            )
    return wrong


def _load(folder: Path) -> Reader:
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    return Reader(*models)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--clean", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=None)
    options = parser.parse_args()
    began = time.process_time()
    scores = list(run_faults(options.count, options.seed))
    seconds = time.process_time() - began
    wrong = run_clean(options.clean, options.seed, None if options.model is None else _load(options.model))
    large = [(fault, one) for fault, one in scores if fault.size >= 5]
    print()
    print("| | all | size of 5 floors or more |")
    print("| --- | --- | --- |")
    for name, hits in (
        ("rule found (precision and recall ≥ 0.95)", lambda one: one.is_found),
        ("damage named by an exact test", lambda one: bool(one.is_named) and one.is_found),
    ):
        rated = [[one for _, one in some if name[0] == "r" or one.is_named is not None] for some in (scores, large)]
        print(f"| {name} | " + " | ".join(f"{sum(map(hits, some))} of {len(some)}" for some in rated) + " |")
    extra = Counter(max(0, one.findings - 1) for _, one in scores)
    print(f"| findings beyond the first | {dict(sorted(extra.items()))} | |")
    print(f"| clean pairs with a finding | {wrong} of {options.clean} | |")
    print(f"| CPU seconds for each fault | {seconds / max(1, options.count):.2f} | |")


if __name__ == "__main__":
    main()
