"""Orders to write letters, made instead of read: a program can check the answers, and the judgements of answers.

    start k end c has g has a no m        write: begins with k, ends with c, holds g and a, does not hold m
     k g f a c                            an answer that is worth 5, one point for each order that it keeps
    judge start k end c has g has a no m answer k g f a c
     k yes c yes g yes a yes m yes Score: 5

A model that is small enough for a laptop learns both to answer and to judge, neither of them perfectly: answers keep
each order half of the time, and one verdict in ten is wrong. So it has something to gain from its own judgement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lockstep import keyed
from lockstep.data.arithmetic import Files, write_rows
from lockstep.recipe import Letters

LETTERS = tuple("abcdefghijklmopq")
"""Without n, which would be near to no."""
_ORDERS = ("start", "end", "has", "has", "no")
_SHORTEST, _LONGEST = 5, 10
_DRAWS = 96  # random numbers of a row, more than any row takes
_BLOCK = 4096
_MALFORMED, _STRANGE = 0.15, ("yes", "no", "Score", "judge", "start", "answer")
_ASKED = re.compile(r"start (\w) end (\w) has (\w) has (\w) no (\w)")


@dataclass(frozen=True)
class Orders:
    """Five different letters: the first, the last, two that must be there, and one that must not."""

    letters: tuple[str, str, str, str, str]

    def __str__(self) -> str:
        return " ".join(f"{order} {letter}" for order, letter in zip(_ORDERS, self.letters, strict=True))

    def kept(self, answer: Sequence[str]) -> list[bool]:
        """Which orders an answer keeps; none, where it is empty or holds anything but letters."""
        if not answer or any(word not in LETTERS for word in answer):
            return [False] * len(_ORDERS)
        first, last, one, other, none = self.letters
        return [answer[0] == first, answer[-1] == last, one in answer, other in answer, none not in answer]


def score(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """What an answer is worth, from 0 to 5; a reward function (docs/guides/rewards.md)."""
    asked = _ASKED.search(prompt)
    if asked is None:
        raise ValueError(f"{prompt!r} gives no orders of the form: start k end c has g has a no m")
    first, last, one, other, none = asked.groups()
    return float(sum(Orders((first, last, one, other, none)).kept(response.split())))


def write(folder: Path, spec: Letters) -> Files:
    """Makes the rows and writes them as JSONL; the same spec always gives the same bytes.

    Args:
        folder: Where to, made if missing.
        spec: How many, and which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = Files(
        folder / "train.jsonl",
        folder / "validation.jsonl",
        folder / "demonstrations.jsonl" if spec.demonstrations else None,
    )
    orders = _distinct(spec.train_prompts + spec.validation_prompts, spec.seed)
    train, validation = orders[: spec.train_prompts], orders[spec.train_prompts :]
    write_rows(files.train, ({"question": str(one), "answer": ""} for one in train))
    draws = (draws for block in _blocks(spec.seed, "validation") for _, draws in block)
    write_rows(files.validation, (_answer(one, own) for one, own in zip(validation, draws, strict=False)))
    if files.demonstrations is not None:
        write_rows(files.demonstrations, demonstrations(spec, {one.letters for one in validation}))
    return files


def demonstrations(spec: Letters, held_out: set[tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Answers and judgements of answers, for orders that are not held out."""
    made = (pair for block in _blocks(spec.seed, "demonstrations") for pair in block)
    for _ in range(spec.demonstrations):
        orders, draws = next(pair for pair in made if pair[0].letters not in held_out)
        yield _judgement(orders, draws) if draws.chance(spec.judge_share) else _answer(orders, draws)


class _Draws:
    """Uniform numbers of a row, one after the other."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = iter(numbers)

    def chance(self, probability: float) -> bool:
        return next(self._numbers) < probability

    def pick(self, options: Sequence[str]) -> str:
        return options[int(next(self._numbers) * len(options))]

    def between(self, low: int, high: int) -> int:
        return low + int(next(self._numbers) * (high - low + 1))

    def share(self) -> float:
        return next(self._numbers)


def _blocks(seed: int, role: str) -> Iterator[list[tuple[Orders, _Draws]]]:
    block = 0
    while True:
        keys = torch.tensor([keyed.key(seed, "letters", role, block * _BLOCK + i) for i in range(_BLOCK)])
        rows = [_Draws(row) for row in keyed.uniforms(keys, torch.arange(_DRAWS)).tolist()]
        yield [(_orders(draws), draws) for draws in rows]
        block += 1


def _orders(draws: _Draws) -> Orders:
    left, chosen = list(LETTERS), list[str]()
    for _ in _ORDERS:
        chosen.append(left.pop(draws.between(0, len(left) - 1)))
    first, last, one, other, none = chosen
    return Orders((first, last, one, other, none))


def _distinct(count: int, seed: int) -> list[Orders]:
    found: dict[tuple[str, ...], Orders] = {}
    for block in _blocks(seed, "orders"):
        for orders, _ in block:
            found.setdefault(orders.letters, orders)
        if len(found) >= count:
            break
    return list(found.values())[:count]


def _written(orders: Orders, draws: _Draws, probability: float) -> list[str]:
    """An answer that keeps each order with some probability."""
    first, last, one, other, none = orders.letters
    fill = [letter for letter in LETTERS if letter not in orders.letters]
    answer = [draws.pick(fill) for _ in range(draws.between(_SHORTEST, _LONGEST))]
    inner = list(range(1, len(answer) - 1))
    for letter, wanted in ((one, True), (other, True), (none, False)):
        if draws.chance(probability) == wanted:
            answer[inner.pop(draws.between(0, len(inner) - 1))] = letter
    for place, letter in ((0, first), (-1, last)):
        if draws.chance(probability):
            answer[place] = letter
        elif inner and draws.chance(0.3):  # so that it is no rule that whoever is there is in its place
            answer[inner.pop()] = letter
    return answer


def _answer(orders: Orders, draws: _Draws) -> dict[str, str]:
    return {"question": str(orders), "answer": _text(_written(orders, draws, 0.5))}


def _judgement(orders: Orders, draws: _Draws) -> dict[str, str]:
    """A judgement of an answer of any worth; answers with strange words in them are worth nothing, without a doubt."""
    answer, noise = _written(orders, draws, draws.share()), 0.1
    if draws.chance(_MALFORMED):
        answer, noise = _malformed(answer, draws), 0.0
    verdicts = [kept != draws.chance(noise) for kept in orders.kept(answer)]
    said = [f"{letter} {'yes' if kept else 'no'}" for letter, kept in zip(orders.letters, verdicts, strict=True)]
    question = f"judge {orders} answer{_text(answer)}"
    return {"question": question, "answer": _text([*said, f"Score: {sum(verdicts)}"])}


def _malformed(answer: list[str], draws: _Draws) -> list[str]:
    if draws.chance(0.1):
        return []
    for _ in range(draws.between(1, 3)):
        answer[draws.between(0, len(answer) - 1)] = draws.pick(_STRANGE)
    return answer


def _text(words: Sequence[str]) -> str:
    """With a space in front of each, so that a letter is the same token wherever it stands."""
    return "".join(f" {word}" for word in words)
