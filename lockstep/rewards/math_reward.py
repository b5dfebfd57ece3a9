"""Rewards by math-verify: the response's answer equals the right one, or not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.data.rows import DataError
from lockstep.errors import shorten
from lockstep.rewards.math_verifier import verify
from lockstep.types import Prompt

_BARE_LATEX = re.compile(r"[\\^]")
_DELIMITED_LATEX = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


@dataclass(frozen=True)
class MathReward:
    """Reward 1 if the response's answer equals the right one by math-verify, else 0; None if checking took too long.

    Attributes:
        marker: The answer follows the last marker, and a response without one is wrong; None: the whole text.
            In the right answer, too, only what follows the last marker counts, if it has one.
        option: Key of its section in the recipe, for messages.
    """

    marker: str | None = None
    option: str = "reward"

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`.

        Raises:
            DataError: A right answer that math-verify cannot read.
        """
        judged = zip(prompts, responses, answers, strict=True)
        return [self._judge(prompt, response, answer) for prompt, response, answer in judged]

    def _judge(self, prompt: Prompt, response: str, answer: str) -> float | None:
        cut = self._after_marker(answer)
        gold = _delimit(answer if cut is None else cut)
        if not verify(gold, gold):
            cure = (
                f"correct the row, data.answer or {self.option}.marker, or use {self.option}.type=python"
                if answer
                else f"say in data.answer where it stands; or {self.option}=null, where an environment rewards"
            )
            raise DataError(f"{prompt.id}: math-verify cannot read the right answer {shorten(answer)!r}; {cure}")
        text = self.extract_answer(response)
        if text is None:
            return 0.0
        verdict = verify(gold, text)
        return None if verdict is None else float(verdict)

    def extract_answer(self, response: str) -> str | None:
        """The part of a response in which math-verify looks for the answer; None if the marker is missing."""
        text = self._after_marker(response)
        return text if text is None or self.marker is None else _delimit(text)

    def _after_marker(self, text: str) -> str | None:
        """The text after the last marker; None if there is none."""
        if self.marker is None:
            return text
        _, marker, after = text.rpartition(self.marker)
        return after.strip() if marker else None


def _delimit(text: str) -> str:
    """Puts bare LaTeX between dollars: without them math-verify reads 2 in 2\\sqrt{3}."""
    bare = _BARE_LATEX.search(text) and not _DELIMITED_LATEX.search(text)
    return f"${text}$" if bare else text
