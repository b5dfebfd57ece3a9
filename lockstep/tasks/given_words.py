"""Sentences with given words: a task in plain English for a small instruct model.

A row names three words, and instructions that a program checks: each of them occurs once, and
the response is one whole sentence. No response earns more than 1. Words of held-out rows are in no
row of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations
from pathlib import Path
from typing import Any

from lockstep.tasks.base import Task, TaskFiles, permute, write_rows

TRAINED = (
    "river dog green letter winter happy table music horse old window sugar road teacher red sleep "
    "bridge coffee cold farmer shoe laugh cloud key young market bird paper sing stone evening "
    "soft doctor boat yellow lamp walk forest cup brave train hill butter clock warm ship "
    "story fence"
)
HELD_OUT = (
    "garden cat blue bread summer quiet chair song cow tall door salt street nurse dance moon tea "
    "small baker coat smile rain coin island"
)


class GivenWords(Task):
    """The task of sentences with given words."""

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder)
        write_rows(files.train, islice(_build_rows(TRAINED), 512))
        write_rows(files.validation, islice(_build_rows(HELD_OUT), 256))
        return files


def _build_rows(vocabulary: str) -> Iterator[dict[str, Any]]:
    """Yields a row for each choice of three words, in a random order that is always the same."""
    choices = list(permutations(vocabulary.split(), 3))
    for place in permute(len(choices), "sentences"):
        words = choices[place]
        listed = f"{words[0]}, {words[1]} and {words[2]}"
        yield {
            "question": f"Write a short sentence with the words {listed}, each once.",
            "asked": [
                {"id": "keywords", "words": list(words), "at_least": 1, "at_most": 1},
                {"id": "sentences", "at_most": 1},
                {"id": "ends_with", "text": "."},
            ],
        }
