"""The word problems: right, distinct, the same every time, and shaped so that a toy can learn
them.
"""

import re
from pathlib import Path

import pytest

from lockstep.config import TaskFiles
from lockstep.data.jsonl import JsonlIndex
from lockstep.tasks.arithmetic import Arithmetic

SPEC = Arithmetic(
    name="arithmetic", train_questions=300, validation_questions=100, demonstrations=1000
)
GAIN = re.compile(r"buys (\d+) more|brings (\d+) more|finds (\d+)")
LOSS = re.compile(r"sells (\d+)|gives away (\d+)|loses (\d+)")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TaskFiles:
    return SPEC.write(tmp_path_factory.mktemp("made"))


def rows(path: Path | None) -> list[dict[str, str]]:
    assert path is not None
    index = JsonlIndex(path)
    return index.read_rows(range(len(index)))


def solved(question: str) -> list[str]:
    """Reads a question with other means than those that wrote it."""
    first, *sentences, asked = re.findall(r"[^.?]+[.?]", question)
    start = re.fullmatch(r"(\w+) has (\d+) (\w+)\.", first)
    assert start is not None
    assert asked == f" How many {start[3]} does {start[1]} have now?"
    value, lines = int(start[2]), []
    for sentence in sentences:
        match = GAIN.search(sentence) or LOSS.search(sentence)
        assert match is not None, sentence
        n = int(match[match.lastindex or 0])
        sign, result = ("+", value + n) if GAIN.search(sentence) else ("-", value - n)
        lines.append(f"{value}{sign}{n}={result}")
        value = result
    return [*lines, f"#### {value}"]


def test_arithmetic_answers_match_independent_solution_of_questions(files: TaskFiles) -> None:
    for row in rows(files.train) + rows(files.validation):
        assert row["answer"].split("\n") == solved(row["question"])


def test_arithmetic_questions_are_distinct_within_and_across_splits(files: TaskFiles) -> None:
    train = [row["question"] for row in rows(files.train)]
    validation = [row["question"] for row in rows(files.validation)]
    assert (len(train), len(validation)) == (300, 100)
    assert len({*train, *validation}) == 400


def test_arithmetic_demonstrations_show_steps_first_then_direct_answers_for_fixed_share(
    files: TaskFiles,
) -> None:
    order = {row["question"]: i for i, row in enumerate(rows(files.train))}
    shown = rows(files.demonstrations)
    direct = ["=" not in row["answer"] for row in shown]
    assert len(shown) == 1000
    assert not any(direct[:800])
    assert direct[800:] == [order[row["question"]] < 0.6 * 300 for row in shown[800:]]
    assert 0.5 < sum(direct[800:]) / 200 < 0.7
    for row, is_direct in zip(shown, direct, strict=True):
        assert row["answer"].split("\n") == (
            solved(row["question"])[-1:] if is_direct else solved(row["question"])
        )


def test_arithmetic_files_are_byte_identical_for_same_spec_and_differ_by_seed(
    tmp_path: Path, files: TaskFiles
) -> None:
    again = SPEC.write(tmp_path / "again")
    assert again.demonstrations is not None
    assert files.demonstrations is not None
    assert again.train.read_bytes() == files.train.read_bytes()
    assert again.validation.read_bytes() == files.validation.read_bytes()
    assert again.demonstrations.read_bytes() == files.demonstrations.read_bytes()
    other = SPEC.model_copy(update={"seed": 1}).write(tmp_path / "other")
    assert other.train.read_bytes() != files.train.read_bytes()


def test_first_arithmetic_problem_of_seed_0_is_unchanged(files: TaskFiles) -> None:
    """Runs are compared over versions: whoever changes the problems must know it."""
    assert rows(files.train)[0] == {
        "question": "Finn has 9 stamps. Finn buys 5 more stamps. Finn buys 10 more stamps. Finn "
        "loses 7 of the stamps. "
        "Finn gives away 4 stamps. How many stamps does Finn have now?",
        "answer": "9+5=14\n14+10=24\n24-7=17\n17-4=13\n#### 13",
    }


def test_existing_task_files_are_kept_and_damaged_file_is_rewritten(tmp_path: Path) -> None:
    spec = Arithmetic(name="arithmetic", train_questions=5, validation_questions=5)
    first = spec.write(tmp_path)
    assert first.demonstrations is None
    before = first.train.stat()
    spec.write(tmp_path)
    assert (first.train.stat().st_ino, first.train.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )
    first.validation.write_bytes(b"half a fi")
    spec.write(tmp_path)
    assert len(rows(first.validation)) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl", "validation.jsonl"]
