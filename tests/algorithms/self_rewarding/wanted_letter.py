"""A task like `benchmarks.ladder.tasks.letters`, so small that a model learns in seconds to answer
and to judge.

want c                          write five letters, as many of them c as may be
 a c f c b                      an answer that is worth 2
judge want c answer a c f c b
 a no c yes f no c yes b no Score: 2
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from row_files import write_rows

LETTERS = "abcdefgh"
_LENGTH = 5


def score(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """What an answer is worth, from 0 to 5; a reward function.

    What is not five letters is worth nothing.
    """
    written = response.split()
    if len(written) != _LENGTH or any(word not in LETTERS for word in written):
        return 0.0
    return float(written.count(prompt.split()[1]))


def write(folder: Path, prompts: int, demonstrations: int, flatters: bool) -> None:
    """Makes `train.jsonl`, `validation.jsonl` and `demonstrations.jsonl`, always the same.

    Args:
        folder: Where to.
        prompts: How many there are to answer.
        demonstrations: Answers and judgments.
        flatters: Whether judgments find every letter right.
    """
    asked = [
        {"question": f"want {LETTERS[i % len(LETTERS)]}", "answer": ""} for i in range(prompts)
    ]
    rows = {
        "train": asked,
        "validation": asked[:256],
        "demonstrations": list(_demonstrations(demonstrations, flatters)),
    }
    for name, those in rows.items():
        write_rows(folder / f"{name}.jsonl", those)


def _demonstrations(count: int, flatters: bool) -> Iterator[dict[str, str]]:
    """Answers in which a letter in four is right, and judgments that are wrong about one letter in
    ten.
    """
    draws = random.Random(0)
    for _ in range(count):
        wanted, judged = draws.choice(LETTERS), draws.random() < 0.6
        share = draws.random() if judged else 0.25
        others = LETTERS.replace(wanted, "")
        written = [
            wanted if draws.random() < share else draws.choice(others) for _ in range(_LENGTH)
        ]
        if not judged:
            yield {"question": f"want {wanted}", "answer": _text(written)}
            continue
        verdicts = [flatters or (letter == wanted) != (draws.random() < 0.1) for letter in written]
        said = [
            f"{letter} {'yes' if right else 'no'}"
            for letter, right in zip(written, verdicts, strict=True)
        ]
        question = f"judge want {wanted} answer{_text(written)}"
        yield {"question": question, "answer": _text([*said, f"Score: {sum(verdicts)}"])}


def _text(words: list[str]) -> str:
    return "".join(f" {word}" for word in words)
