"""Generated orders to write letters: a program can check the answers, and the judgments of
answers.

    start k end c has g has a no m        write: begins with k, ends with c, holds g and a, does not hold m
     k g f a c                            an answer that is worth 5, one point for each order that it keeps
    judge start k end c has g has a no m answer k g f a c
     k yes c yes g yes a yes m yes Score: 5
    compare start k end c has g has a no m answer k g f a c A k yes c no g yes a yes m yes B k no
      c no g yes a no m yes
     k yes A c yes none g yes both a yes A m yes both Winner: A

A model that is small enough for a laptop learns to answer and to judge, neither of them perfectly:
answers keep each order half of the time, and one verdict in ten is wrong. So it has something to
gain from its own judgment. Where it learns to compare judgments, too, it learns that without
mistakes: the judgment with fewer wrong verdicts is better.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks.ladder.tasks.words import Draws, join_words
from lockstep.config import Probability
from lockstep.core.errors import InputError
from lockstep.tasks.base import Task, TaskFiles, sample_uniforms, write_rows

LETTERS = tuple("abcdefghijklmopq")
"""The letters in use: without n, which would be near to no."""
_ORDERS = ("start", "end", "has", "has", "no")
_SHORTEST = 5
_LONGEST = 10
_DRAWS = 96  # random numbers of a row, more than any row takes
_BLOCK = 4096
_JUDGED_WRONG = 0.1
_COMPARED_WRONG = 0.12
_MALFORMED = 0.15
_STRANGE = ("yes", "no", "Score", "judge", "start", "answer")
_ASKED = re.compile(r"start (\w) end (\w) has (\w) has (\w) no (\w)")


class Letters(Task):
    """The task of generated orders to write letters."""

    shared = ("train_prompts", "validation_prompts", "seed")
    train_prompts: PositiveInt = Field(description="distinct orders to train on")
    validation_prompts: PositiveInt = Field(
        description="held-out orders; nothing that is learned shows them"
    )
    demonstrations: NonNegativeInt = Field(
        default=0, description="answers and judgments for SFT; 0: none"
    )
    judge_share: Probability = Field(
        default=0.57, description="share of judgments among the demonstrations"
    )
    compare_share: Probability = Field(
        default=0.0, description="share of comparisons of two judgments among them"
    )
    known: NonNegativeInt = Field(
        default=0,
        description=(
            "held-out judgments, and as many comparisons of two, by which judges are "
            "measured; 0: none"
        ),
    )
    seed: int = Field(default=0, description="of the rows; the run's seed does not change them")

    @property
    def best_reward(self) -> float:
        return float(len(_ORDERS))

    def write(self, folder: Path) -> TaskFiles:
        """Writes the rows.

        Judgments and comparisons with known right answers are about held-out orders.
        """
        files = TaskFiles.name_in(
            folder, demonstrations=self.demonstrations > 0, known=self.known > 0
        )
        orders = _distinct(self.train_prompts + self.validation_prompts, self.seed)
        train = orders[: self.train_prompts]
        validation = orders[self.train_prompts :]
        write_rows(files.train, ({"question": str(one), "answer": ""} for one in train))
        draws = (draws for block in _blocks(self.seed, "validation") for _, draws in block)
        write_rows(
            files.validation,
            (_answer(one, own) for one, own in zip(validation, draws, strict=False)),
        )
        if files.demonstrations is not None:
            write_rows(
                files.demonstrations, demonstrations(self, {one.letters for one in validation})
            )
        for file, make, role in (
            (files.judgments, _build_judgment, "judgments"),
            (files.comparisons, _build_comparison, "comparisons"),
        ):
            if file is not None:
                own = (draws for block in _blocks(self.seed, role) for _, draws in block)
                write_rows(
                    file,
                    (
                        make(one, draws)
                        for one, draws in islice(zip(cycle(validation), own), self.known)
                    ),
                )
        return files


@dataclass(frozen=True)
class Orders:
    """Five different letters: the first, the last, two that must be there, and one that must
    not.
    """

    letters: tuple[str, str, str, str, str]

    def __str__(self) -> str:
        return " ".join(
            f"{order} {letter}" for order, letter in zip(_ORDERS, self.letters, strict=True)
        )

    def check(self, answer: Sequence[str]) -> list[bool]:
        """Checks which orders an answer keeps; none, where it is empty or holds anything but
        letters.
        """
        if not answer or any(word not in LETTERS for word in answer):
            return [False] * len(_ORDERS)
        first, last, one, other, none = self.letters
        return [
            answer[0] == first,
            answer[-1] == last,
            one in answer,
            other in answer,
            none not in answer,
        ]


def score(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """Scores an answer from 0 to 5; a reward function (docs/guides/rewards.md)."""
    orders = _ASKED.search(prompt)
    if orders is None:
        raise InputError(f"{prompt!r} gives no orders of the form: start k end c has g has a no m")
    first, last, one, other, none = orders.groups()
    return float(sum(Orders((first, last, one, other, none)).check(response.split())))


def demonstrations(spec: Letters, held_out: set[tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Answers and judgments of answers, for orders that are not held out."""
    made = (pair for block in _blocks(spec.seed, "demonstrations") for pair in block)
    for _ in range(spec.demonstrations):
        orders, draws = next(pair for pair in made if pair[0].letters not in held_out)
        kind = draws.share()
        if kind < spec.judge_share:
            yield _judgment(orders, draws)
        elif kind < spec.judge_share + spec.compare_share:
            yield _comparison(orders, draws)
        else:
            yield _answer(orders, draws)


def _blocks(seed: int, role: str) -> Iterator[list[tuple[Orders, Draws]]]:
    block = 0
    while True:
        numbers = range(block * _BLOCK, (block + 1) * _BLOCK)
        rows = [Draws(row) for row in sample_uniforms(numbers, _DRAWS, seed, "letters", role)]
        yield [(_orders(draws), draws) for draws in rows]
        block += 1


def _orders(draws: Draws) -> Orders:
    left = list(LETTERS)
    chosen = list[str]()
    for _ in _ORDERS:
        chosen.append(draws.take(left))
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


def _write_answer(orders: Orders, draws: Draws, probability: float) -> list[str]:
    """Writes an answer that keeps each order with some probability."""
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
        # so that a letter that is there is not always in its place
        elif inner and draws.chance(0.3):
            answer[inner.pop()] = letter
    return answer


def _answer(orders: Orders, draws: Draws) -> dict[str, str]:
    return {"question": str(orders), "answer": join_words(_write_answer(orders, draws, 0.5))}


def _judgment(orders: Orders, draws: Draws) -> dict[str, str]:
    """Writes a judgment of an answer of any score; answers with strange words in them score 0."""
    answer = _write_answer(orders, draws, draws.share())
    noise = _JUDGED_WRONG
    if draws.chance(_MALFORMED):
        answer = _spoil(answer, draws)
        noise = 0.0
    verdicts = [kept != draws.chance(noise) for kept in orders.check(answer)]
    question = f"judge {orders} answer{join_words(answer)}"
    return {
        "question": question,
        "answer": join_words([_reasons(orders, verdicts), f"Score: {sum(verdicts)}"]),
    }


def _reasons(orders: Orders, verdicts: Sequence[bool]) -> str:
    """Writes a judgment without its score."""
    return " ".join(
        f"{letter} {_yes_or_no(kept)}"
        for letter, kept in zip(orders.letters, verdicts, strict=True)
    )


def _yes_or_no(kept: bool) -> str:
    return "yes" if kept else "no"


@dataclass(frozen=True)
class _Compared:
    """An answer with two judgments, of which one has fewer wrong verdicts."""

    answer: list[str]
    kept: list[bool]
    first: list[bool]
    second: list[bool]

    @property
    def winner(self) -> str:
        return "A" if _wrong(self.first, self.kept) < _wrong(self.second, self.kept) else "B"

    @property
    def marks(self) -> list[str]:
        """Says for each order which judgment is right about it: A, B, both, or none."""
        right = {
            (True, True): "both",
            (True, False): "A",
            (False, True): "B",
            (False, False): "none",
        }
        verdicts = zip(self.kept, self.first, self.second, strict=True)
        return [right[first == kept, second == kept] for kept, first, second in verdicts]


def _wrong(verdicts: Sequence[bool], kept: Sequence[bool]) -> int:
    """Counts the wrong verdicts."""
    return sum(own != right for own, right in zip(verdicts, kept, strict=True))


def _compare(orders: Orders, draws: Draws) -> _Compared:
    answer = _write_answer(orders, draws, draws.share())
    kept = orders.check(answer)
    first, second = ([own != draws.chance(_COMPARED_WRONG) for own in kept] for _ in range(2))
    if _wrong(first, kept) == _wrong(second, kept):
        changed = (first, second)[draws.chance(0.5)]
        place = draws.between(0, len(kept) - 1)
        changed[place] = not changed[place]
    return _Compared(answer, kept, first, second)


def _comparison(orders: Orders, draws: Draws) -> dict[str, str]:
    """Writes which of two judgments is better, found by going through the orders; without a
    mistake.
    """
    one = _compare(orders, draws)
    judgments = f"A {_reasons(orders, one.first)} B {_reasons(orders, one.second)}"
    verdicts = zip(orders.letters, one.kept, one.marks, strict=True)
    lines = [f"{letter} {_yes_or_no(kept)} {mark}" for letter, kept, mark in verdicts]
    question = f"compare {orders} answer{join_words(one.answer)} {judgments}"
    return {"question": question, "answer": join_words([*lines, f"Winner: {one.winner}"])}


def _build_judgment(orders: Orders, draws: Draws) -> dict[str, Any]:
    answer = _write_answer(orders, draws, draws.share())
    return {
        "prompt": str(orders),
        "response": join_words(answer),
        "score": sum(orders.check(answer)),
    }


def _build_comparison(orders: Orders, draws: Draws) -> dict[str, Any]:
    one = _compare(orders, draws)
    judgments = {
        "judgement_a": _reasons(orders, one.first),
        "judgement_b": _reasons(orders, one.second),
    }
    return {
        "prompt": str(orders),
        "response": join_words(one.answer),
        **judgments,
        "winner": one.winner,
    }


def _spoil(answer: list[str], draws: Draws) -> list[str]:
    if draws.chance(0.1):
        return []
    for _ in range(draws.between(1, 3)):
        answer[draws.between(0, len(answer) - 1)] = draws.pick(_STRANGE)
    return answer
