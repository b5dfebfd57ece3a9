"""Rewards by math-verify: whether the response's answer equals the right one."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.errors import shorten_text
from lockstep.core.types import Prompt
from lockstep.data.rows import DataError
from lockstep.data.thoughts import drop_thought
from lockstep.rewards.math_answer import find_answer, find_marked, find_right_answer
from lockstep.rewards.math_verifier import verify_equal

READING = 3
"""Version of the rules for parsing right answers, for caches."""

GSM8K_MARKER = "####"
"""The marker before the answer at the end of GSM8K's solutions."""
_REMEMBERED = 1 << 16


@dataclass(frozen=True)
class MathReward:
    """Rewards 1 if math-verify finds the answer equal to the right one, else 0; None on timeout.

    Attributes:
        marker: The answer follows the last marker, and a response without one is wrong; None: the
            full text. If the right answer has a marker, only the text after the last one counts.
        option: Key of the section in the recipe, for messages.
    """

    marker: str | None = None
    option: str = "reward"

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`.

        Raises:
            DataError: A right answer does not parse completely.
        """
        judged = zip(prompts, responses, answers, strict=True)
        found: list[float | None] = []
        for prompt, response, answer in judged:
            found.append(self._judge_response(prompt, response, answer))
        return found

    def _judge_response(self, prompt: Prompt, response: str, answer: str) -> float | None:
        right = read_right_answer(answer, self.marker)
        if right is None:
            raise DataError(f"{prompt.id}: {self.explain_unread(answer)}; correct the row")
        found = self.extract_answer(response, prompt.text)
        if found is None:
            return 0.0
        verdict = verify_equal(right, found)
        if verdict is None:
            return None
        return float(verdict)

    def explain_unread(self, answer: str) -> str | None:
        """Returns the error in a right answer, with options to set; None if it parses."""
        if read_right_answer(answer, self.marker) is not None:
            return None
        if answer:
            cure = f"change data.answer or {self.option}.marker, use {self.option}.type=python"
        else:
            cure = (
                f"name its field in data.answer, or set {self.option}=null if an environment "
                "rewards"
            )
        return f"math-verify cannot read the right answer {shorten_text(answer)!r} in full; {cure}"

    def extract_answer(self, response: str, prompt: str = "") -> str | None:
        """Returns a response's answer as LaTeX, without thoughts; None if none parses completely.

        Args:
            response: The response.
            prompt: The text before the response, which may open the thought.
        """
        text = drop_thought(response, prompt)
        if self.marker is None:
            return find_answer(text)
        after = _find_after_marker(text, self.marker)
        if after is None:
            return None
        return find_marked(after)


@functools.lru_cache(maxsize=_REMEMBERED)
def read_right_answer(answer: str, marker: str | None) -> str | None:
    """Returns a right answer as LaTeX; None if it does not parse completely.

    If no marker is set, GSM8K's marker is accepted.
    """
    after = _find_after_marker(answer, GSM8K_MARKER if marker is None else marker)
    right = find_right_answer(answer if after is None else after, after is not None)
    if right is not None and verify_equal(right, right) is not False:
        return right
    return None


def _find_after_marker(text: str, marker: str) -> str | None:
    """The text after the last marker; None if there is none.

    A longer run of its sign, such as #####, is not a marker.
    """
    mark = re.escape(marker)
    if len(set(marker)) == 1:
        sign = re.escape(marker[0])
        mark = rf"(?<!{sign}){mark}(?!{sign})"
    end = None
    for found in re.finditer(mark, text):
        end = found.end()
    if end is None:
        return None
    return text[end:].strip()
