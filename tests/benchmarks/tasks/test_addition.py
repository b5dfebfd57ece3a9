"""Sums in words: right, distinct, held out, and demonstrated with as many mistakes as asked for."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from row_files import read_rows

from benchmarks.ladder.tasks.addition import DIGITS, Addition, score
from lockstep.config import TaskFiles

SPEC = Addition(
    name="addition", train_questions=500, validation_questions=100, longest=5, demonstrations=1200, demonstrated=4,
    mistakes=0.2,
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TaskFiles:
    return SPEC.write(tmp_path_factory.mktemp("made"))


def rows(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    return read_rows(path)


def number(words: str) -> int:
    """Reads digits, the last one first, with other means than those that wrote them."""
    return sum(DIGITS.index(word) * 10**place for place, word in enumerate(words.split()))


def solved(question: str) -> int:
    first, second = question.removeprefix("add").removesuffix("make").split("and")
    assert len(first.split()) == len(second.split()) == SPEC.longest
    return number(first) + number(second)


def test_answers_are_the_sums_without_leading_zeros(files: TaskFiles) -> None:
    for row in rows(files.train) + rows(files.validation):
        assert number(row["answer"]) == solved(row["question"])
        assert not row["answer"].endswith(" zero")
        assert score("", row["answer"], row["answer"], row) == 1.0


def test_demonstrations_are_short_sums_with_mistakes(files: TaskFiles) -> None:
    train = {row["question"]: row for row in rows(files.train)}
    shown = rows(files.demonstrations)
    assert len(shown) == 1200
    assert {row["digits"] for row in shown} == {2, 3, 4}
    pairs = [
        pair
        for row in shown
        for pair in zip(
            row["answer"].split(), train[row["question"]]["answer"].split(), strict=True
        )
    ]
    assert abs(sum(one != other for one, other in pairs) / len(pairs) - 0.2) < 0.03
    passes = [[row["question"] for row in shown[start : start + 375]] for start in (0, 375, 750)]
    assert all(len({*one}) == 375 for one in passes)
    assert all(one != other for one, other in pairwise(passes))


def test_addition_score_requires_exact_answer() -> None:
    assert score("", " one two", " one two", {}) == 1.0
    assert score("", " one", " one two", {}) == 0.0
    assert score("", " one two zero", " one two", {}) == 0.0
    assert score("", "", " one", {}) == 0.0
