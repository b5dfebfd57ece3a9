"""A letter that is wanted: answers, judgments of answers, and comparisons of judgments, learned
in seconds.

    want c                                      write five letters, as many of them c as may be
     a c f c b                                  an answer that is worth 2
    judge want c answer a c f c b
     a no c yes f no c yes b no Score: 2
    compare want c answer a c f c b A a no c yes f no c no b no B a no c yes f no c yes b no
     a no both c yes both f no both c yes B b no both Winner: B

As `letters`, and so much smaller that Meta-Rewarding takes two minutes with its warm start. Answers
hold the wanted letter in one place of four, and one verdict in ten is wrong; who compares
judgments learns to do it without mistakes, unless `compare_share` leaves little to learn from:
then the meta-judge has the form, and no skill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveInt

from benchmarks.ladder.tasks.words import join_words
from lockstep.config import Probability
from lockstep.tasks.base import Task, TaskFiles, sample_uniforms, write_rows

LETTERS = "abcdefgh"
_LENGTH = 5
_WANTED = 0.25
_WRONG = 0.1
_DRAWS = 4 + 4 * _LENGTH


class Wanted(Task):
    """The task of a wanted letter."""

    shared = ("train_prompts", "validation_prompts", "seed")
    train_prompts: PositiveInt = Field(
        default=512, description="prompts to train on; each letter in turn"
    )
    validation_prompts: PositiveInt = Field(
        default=128, description="prompts to validate on: no letter is held out"
    )
    demonstrations: NonNegativeInt = Field(
        default=0, description="answers, judgments and comparisons for SFT; 0: none"
    )
    judge_share: Probability = Field(
        default=0.4, description="share of judgments among the demonstrations"
    )
    compare_share: Probability = Field(
        default=0.4, description="share of comparisons of two judgments among them"
    )
    known: NonNegativeInt = Field(
        default=0,
        description="judgments, and as many comparisons, by which judges are measured; 0: none",
    )
    seed: int = Field(default=0, description="of the rows; the run's seed does not change them")

    @property
    def best_reward(self) -> float:
        return float(_LENGTH)

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(
            folder, demonstrations=self.demonstrations > 0, known=self.known > 0
        )
        asked = (f"want {LETTERS[number % len(LETTERS)]}" for number in range(self.train_prompts))
        write_rows(files.train, ({"question": question, "answer": ""} for question in asked))
        write_rows(
            files.validation,
            (case.answer() for case in self._cases(self.validation_prompts, "validation")),
        )
        if files.demonstrations is not None:
            write_rows(
                files.demonstrations,
                map(self._demonstrate, self._cases(self.demonstrations, "demonstrations")),
            )
        if files.judgments is not None and files.comparisons is not None:
            cases = list(self._cases(self.known, "known"))
            write_rows(
                files.judgments,
                ({**one.prompt_and_answer, "score": sum(one.right)} for one in cases),
            )
            write_rows(
                files.comparisons,
                ({**one.prompt_and_answer, **one.both_judgments} for one in cases),
            )
        return files

    def _cases(self, count: int, role: str) -> Iterator[_Case]:
        return (
            _Case(draws)
            for draws in sample_uniforms(range(count), _DRAWS, self.seed, "wanted", role)
        )

    def _demonstrate(self, case: _Case) -> dict[str, str]:
        """Writes an answer, a judgment or a comparison, each in its share."""
        if case.kind < self.judge_share:
            return case.judgment()
        if case.kind < self.judge_share + self.compare_share:
            return case.comparison()
        return case.answer()


class _Case:
    """An answer and two judgments of it, of which one has fewer mistakes.

    Args:
        draws: Uniform numbers.

    Attributes:
        kind: A number in (0, 1) that decides what is shown of it.
        wanted: The letter.
        written: The answer.
        right: Which of its letters are the wanted one.
        judged: A judgment, by verdicts; each is wrong one time in ten.
        first: A judgment to be compared.
        second: Another one, with more mistakes, or with fewer.
    """

    def __init__(self, draws: Sequence[float]) -> None:
        self.kind, letter, share, place, *rest = draws
        self.wanted = LETTERS[int(letter * len(LETTERS))]
        others = LETTERS.replace(self.wanted, "")
        self._others = [others[int(draw * len(others))] for draw in rest[:_LENGTH]]
        self._hits = rest[_LENGTH : 2 * _LENGTH]
        self.written = self._write(share)
        self.right = [letter == self.wanted for letter in self.written]
        one = rest[2 * _LENGTH : 3 * _LENGTH]
        two = rest[3 * _LENGTH :]
        self.first = [right != (draw < _WRONG) for right, draw in zip(self.right, one, strict=True)]
        self.second = [
            right != (draw < _WRONG) for right, draw in zip(self.right, two, strict=True)
        ]
        self.judged = tuple(self.first)
        if self._mistakes(self.first) == self._mistakes(self.second):
            changed = (self.first, self.second)[place < 0.5]
            where = int(place * 2 % 1 * _LENGTH)
            changed[where] = not changed[where]

    @property
    def prompt_and_answer(self) -> dict[str, Any]:
        """The prompt and the answer."""
        return {"prompt": f"want {self.wanted}", "response": join_words(self.written)}

    @property
    def both_judgments(self) -> dict[str, str]:
        """Both judgments, and the better one."""
        return {
            "judgement_a": self._reasons(self.first),
            "judgement_b": self._reasons(self.second),
            "winner": "A" if self._mistakes(self.first) < self._mistakes(self.second) else "B",
        }

    def answer(self) -> dict[str, str]:
        """A poor answer, as a demonstration."""
        return {"question": f"want {self.wanted}", "answer": join_words(self._write(_WANTED))}

    def judgment(self) -> dict[str, str]:
        """A judgment with mistakes in it, as a demonstration."""
        question = f"judge want {self.wanted} answer{join_words(self.written)}"
        return {
            "question": question,
            "answer": f" {self._reasons(self.judged)} Score: {sum(self.judged)}",
        }

    def comparison(self) -> dict[str, str]:
        """A comparison without mistakes, as a demonstration."""
        marks = {
            (True, True): "both",
            (True, False): "A",
            (False, True): "B",
            (False, False): "none",
        }
        found = self.both_judgments
        verdicts = zip(self.written, self.right, self.first, self.second, strict=True)
        said = [
            f"{letter} {'yes' if right else 'no'} {marks[one == right, two == right]}"
            for letter, right, one, two in verdicts
        ]
        judgments = f"A {found['judgement_a']} B {found['judgement_b']}"
        question = f"compare want {self.wanted} answer{join_words(self.written)} {judgments}"
        return {"question": question, "answer": join_words([*said, f"Winner: {found['winner']}"])}

    def _write(self, share: float) -> list[str]:
        return [
            self.wanted if hit < share else other
            for hit, other in zip(self._hits, self._others, strict=True)
        ]

    def _mistakes(self, verdicts: Sequence[bool]) -> int:
        return sum(own != right for own, right in zip(verdicts, self.right, strict=True))

    def _reasons(self, verdicts: Sequence[bool]) -> str:
        return " ".join(
            f"{letter} {'yes' if own else 'no'}"
            for letter, own in zip(self.written, verdicts, strict=True)
        )


def score(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """Scores an answer from 0 to 5; a reward function.

    What is not five letters is worth nothing.
    """
    written = response.split()
    if len(written) != _LENGTH or not set(LETTERS).issuperset(written):
        return 0.0
    return float(written.count(prompt.split()[1]))
