"""Generated wishes for letters, and pairs of answers of which some are ranked wrongly: what a reward model learns from.

    want c f a k        the best answer names each of these letters once and nothing else, in any order
     f q c h a          names three of four, and two others: worth 3/4 − 2/10

No demonstration names a letter twice, so the pairs, which are of such answers, do not say what a repetition is worth.
`score`, which is gold, says that it costs as much as a letter that was not wanted. A reward model that has learned from
few pairs is a proxy: mostly right about answers like those that it has seen, and not about those that a policy finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from lockstep.config import Probability
from lockstep.config.section import rule
from lockstep.tasks.base import Draws, Task, TaskFiles, join_words, sample_uniforms, write_rows

LETTERS = tuple("abcdefghijklmopq")
WANTED = 4
_SHORTEST, _LONGEST = 3, 8
_COST = 0.1  # of a letter that is not wanted, or not for a second time
_WISHES = 16 * 15 * 14 * 13
_MOST_WISHES = 40_000  # to find the last ones by chance takes long
_BLOCK = 4096
_DRAWS = max(WANTED, 2 + 2 * _LONGEST)


class Proxy(Task):
    """The task of generated wishes for letters."""

    shared = ("train_prompts", "validation_prompts", "seed")
    train_prompts: PositiveInt = Field(description="distinct wishes to train on")
    validation_prompts: PositiveInt = Field(description="held-out wishes; nothing that is learned shows them")
    demonstrations: NonNegativeInt = Field(default=0, description="answers of middling worth, for SFT; 0: none")
    pairs: NonNegativeInt = Field(
        default=0, description="train on so many pairs of such answers in place of wishes; 0: on wishes"
    )
    label_noise: Probability = Field(default=0.2, description="share of the pairs that are ranked the wrong way round")
    seed: int = Field(default=0, description="of the rows; the run's seed does not change them")

    @property
    def idle_options(self) -> dict[str, str]:
        return {} if self.pairs else {"label_noise": "where pairs is 0"}

    @rule
    def _there_are_so_many(self) -> None:
        if self.train_prompts + self.validation_prompts > _MOST_WISHES:
            raise ValueError(
                f"there are {_WISHES:,} different wishes; ask for at most {_MOST_WISHES:,} to train and validate on"
            )

    @property
    def best_reward(self) -> float:
        return 1.0

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        wishes = _distinct(self.train_prompts + self.validation_prompts, self.seed)
        train, validation = wishes[: self.train_prompts], wishes[self.train_prompts :]
        if self.pairs:
            write_rows(files.train, islice(_pairs(train, self, "pairs", self.label_noise), self.pairs))
            held_out = _pairs(validation, self, "held-out pairs", 0.0)
            write_rows(files.validation, islice(held_out, self.validation_prompts))
        else:
            write_rows(files.train, (_row(wish) for wish in train))
            write_rows(files.validation, islice(_answer(validation, self.seed, "validation"), len(validation)))
        if files.demonstrations is not None:
            write_rows(files.demonstrations, islice(_answer(train, self.seed, "demonstrations"), self.demonstrations))
        return files


def score(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """Scores an answer by its worth, which is at most 1; a reward function (docs/guides/rewards.md)."""
    return worth(prompt.split()[1:], response.split())


def worth(wish: Sequence[str], named: Sequence[str]) -> float:
    """The share of the wanted letters that are named, less a tenth for every other word."""
    found = len(set(wish) & set(named))
    return found / len(wish) - _COST * (len(named) - found)


def _draws(seed: int, role: str) -> Iterator[Draws]:
    for block in count():
        rows = range(block * _BLOCK, (block + 1) * _BLOCK)
        yield from (Draws(numbers) for numbers in sample_uniforms(rows, _DRAWS, seed, "proxy", role))


def _distinct(number: int, seed: int) -> list[tuple[str, ...]]:
    """The first wishes of a seed, no two of them alike."""
    found: dict[tuple[str, ...], None] = {}
    for draws in _draws(seed, "wishes"):
        left = list(LETTERS)
        found.setdefault(tuple(draws.take(left) for _ in range(WANTED)))
        if len(found) == number:
            break
    return list(found)


def _write_answer(wish: Sequence[str], draws: Draws) -> list[str]:
    """Writes an answer of which some share is wanted, a third at least; no letter comes twice."""
    share = 1 / 3 + draws.share() * (1.0 - 1 / 3)
    wanted, others = list(wish), [letter for letter in LETTERS if letter not in wish]
    return [
        draws.take(wanted if wanted and draws.chance(share) else others)
        for _ in range(draws.between(_SHORTEST, _LONGEST))
    ]


def _answer(wishes: Sequence[tuple[str, ...]], seed: int, role: str) -> Iterator[dict[str, str]]:
    for index, draws in enumerate(_draws(seed, role)):
        wish = wishes[index % len(wishes)]
        yield _row(wish) | {"answer": join_words(_write_answer(wish, draws))}


def _pairs(wishes: Sequence[tuple[str, ...]], spec: Proxy, role: str, label_noise: float) -> Iterator[dict[str, str]]:
    """Yields two answers each, the better one chosen but for the noise; equal ones are left out."""
    flips = _draws(spec.seed, f"{role}: noise")
    answers = zip(_draws(spec.seed, f"{role}: one"), _draws(spec.seed, f"{role}: other"), strict=True)
    for index, (one, other) in enumerate(answers):
        wish = wishes[index % len(wishes)]
        ranked = sorted((_write_answer(wish, one), _write_answer(wish, other)), key=lambda named: worth(wish, named))
        wrong = next(flips).chance(label_noise)
        if worth(wish, ranked[0]) == worth(wish, ranked[1]):
            continue
        rejected, chosen = reversed(ranked) if wrong else ranked
        yield _row(wish) | {"chosen": join_words(chosen), "rejected": join_words(rejected)}


def _row(wish: Sequence[str]) -> dict[str, str]:
    return {"question": f"want{join_words(wish)}", "answer": ""}
