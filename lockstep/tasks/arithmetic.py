"""Generated word problems in GSM8K's form: a toy model learns them in a minute.

A question takes a starting number through three or four additions and subtractions. The
demonstrations hold two styles of answer: step by step, which a small model can carry out, and
direct, which it cannot. A model that has seen both mixes them, so reinforcement learning has
something to improve.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveInt

from lockstep.config.section import rule
from lockstep.tasks.base import Task, TaskFiles, permute, sample_uniforms, write_rows

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Emma", "Finn", "Gita", "Hugo", "Iris", "Jon")
_THINGS = ("apples", "books", "coins", "dolls", "eggs", "flowers", "marbles", "stamps")
# No word precedes a number in one place and a word in another: models.tokenizer would make two
# tokens of it.
_GAINS = (
    "{name} buys {n} more {things}.",
    "A friend brings {n} more {things}.",
    "{name} finds {n} {things}.",
)
_LOSSES = (
    "{name} sells {n} {things}.",
    "{name} gives away {n} {things}.",
    "{name} loses {n} of the {things}.",
)

# Range of the start and of additions; subtractions leave at least 1.
_SMALLEST = 2
_LARGEST = 10
_FEWEST_STEPS = 3
_MOST_STEPS = 4
# random numbers per question: name, things, start, steps; per step sign, amount, wording
_DRAWS = 4 + 3 * _MOST_STEPS
_BLOCK = 1024
_DIRECT_FROM = 0.8  # share of the demonstrations after which direct answers appear
_DIRECT_SHARE = 0.6  # share of questions that are then answered without reasoning


class Arithmetic(Task):
    """The task of generated word problems."""

    shared = ("train_questions", "validation_questions", "seed")
    train_questions: PositiveInt = Field(description="number of distinct training questions")
    validation_questions: PositiveInt = Field(
        description="number of held-out questions, disjoint from training questions"
    )
    demonstrations: NonNegativeInt = Field(
        default=0,
        description=("number of solved rows for SFT, drawn from the training questions; 0: none"),
    )
    pairs: bool = Field(
        default=False,
        description="number of DPO rows: `chosen` answers step by step, `rejected` directly",
    )
    labels: bool = Field(
        default=False,
        description=(
            "number of KTO rows: `completion` answers step by step (`label` true) or directly "
            "(false)"
        ),
    )
    seed: int = Field(default=0, description="seed of the questions, independent of the run's seed")

    @rule
    def _rows_are_of_one_kind(self) -> None:
        if self.pairs and self.labels:
            raise ValueError("pairs and labels are different kinds of rows; set only one")

    def write(self, folder: Path) -> TaskFiles:
        problems = distinct_problems(self.train_questions + self.validation_questions, self.seed)
        train = problems[: self.train_questions]
        validation = problems[self.train_questions :]
        files = TaskFiles.name_in(folder, demonstrations=self.demonstrations > 0)
        for path, problems in ((files.train, train), (files.validation, validation)):
            write_rows(path, map(self._build_row, itertools.count(), problems))
        if files.demonstrations is not None:
            write_rows(files.demonstrations, build_demonstrations(train, self))
        return files

    def _build_row(self, number: int, problem: WordProblem) -> Mapping[str, str | bool]:
        """A problem's row, by its number in the file."""
        if self.pairs:
            return problem.preference_row()
        if self.labels:
            return problem.label_row(number % 2 == 0)
        return problem.answer_row()


@dataclass(frozen=True)
class WordProblem:
    """A question, the equations that lead to its answer, and the answer."""

    question: str
    steps: tuple[str, ...]
    answer: int

    def answer_row(self, direct: bool = False) -> dict[str, str]:
        """The problem in GSM8K's form: with its steps, or with the bare answer."""
        lines = [*(() if direct else self.steps), f"#### {self.answer}"]
        return {"question": self.question, "answer": "\n".join(lines)}

    def preference_row(self) -> dict[str, str]:
        """The problem with a good answer, step by step, and a worse one, direct."""
        row = self.answer_row()
        return {**row, "chosen": row["answer"], "rejected": self.answer_row(direct=True)["answer"]}

    def label_row(self, label: bool) -> dict[str, str | bool]:
        """The problem with one answer: step by step if labeled good, else direct."""
        return {
            **self.answer_row(),
            "completion": self.answer_row(direct=not label)["answer"],
            "label": label,
        }


def distinct_problems(count: int, seed: int) -> list[WordProblem]:
    """The first `count` problems of a seed, with distinct questions."""
    found: dict[str, WordProblem] = {}
    block = 0
    while len(found) < count:
        rows = range(block * _BLOCK, (block + 1) * _BLOCK)
        for draws in sample_uniforms(rows, _DRAWS, seed, "arithmetic"):
            problem = _draw_problem(iter(draws))
            found.setdefault(problem.question, problem)
        block += 1
    return list(found.values())[:count]


def build_demonstrations(train: list[WordProblem], spec: Arithmetic) -> Iterator[dict[str, str]]:
    """Demonstrations in training order: reasoning first, then both styles.

    The training questions come in passes, each in its own order. A question's index decides whether
    it is answered directly, so that the style depends on the question and is not noise.
    """
    first_direct = _DIRECT_FROM * spec.demonstrations
    num_direct = _DIRECT_SHARE * len(train)
    num_passes = -(-spec.demonstrations // len(train))
    orders = (permute(len(train), spec.seed, "demonstrations", i) for i in range(num_passes))
    questions = itertools.islice(itertools.chain.from_iterable(orders), spec.demonstrations)
    reasoned = [problem.answer_row() for problem in train]
    direct = [problem.answer_row(direct=True) for problem in train]
    for position, question in enumerate(questions):
        yield (direct if position >= first_direct and question < num_direct else reasoned)[question]


def _draw_problem(draws: Iterator[float]) -> WordProblem:
    def pick_integer(low: int, high: int) -> int:
        """A uniform integer from low to high, inclusive."""
        return low + int(next(draws) * (high - low + 1))

    name = _NAMES[pick_integer(0, len(_NAMES) - 1)]
    things = _THINGS[pick_integer(0, len(_THINGS) - 1)]
    value = pick_integer(_SMALLEST, _LARGEST)
    sentences = [f"{name} has {value} {things}."]
    steps = []
    for _ in range(pick_integer(_FEWEST_STEPS, _MOST_STEPS)):
        gain = pick_integer(0, 1) == 1 or value < _SMALLEST + 1
        n = pick_integer(_SMALLEST, _LARGEST) if gain else pick_integer(1, min(value - 1, _LARGEST))
        wording = (_GAINS if gain else _LOSSES)[pick_integer(0, 2)]
        sentences.append(wording.format(name=name, n=n, things=things))
        result = value + n if gain else value - n
        steps.append(f"{value}{'+' if gain else '-'}{n}={result}")
        value = result
    sentences.append(f"How many {things} does {name} have now?")
    return WordProblem(" ".join(sentences), tuple(steps), value)
