"""What responses are worth: right or wrong by math-verify, or whatever a function of the user's says.

A reward may be None, "no verdict": nobody could say, so the response must count neither for nor against anything.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import numbers
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from lockstep import keyed
from lockstep.experience.jsonl import DataError
from lockstep.experience.math_verifier import verify
from lockstep.recipe import RewardSection
from lockstep.types import Prompt

Function = Callable[[str, str, str, dict[str, Any]], float | None]

_BARE_LATEX = re.compile(r"[\\^]")
_DELIMITED_LATEX = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


class RewardError(ValueError):
    """A reward function that cannot be found, or that does not do what one must; the message says which and where."""


class Reward(Protocol):
    """Judges responses."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """One reward per response; None: no verdict.

        Args:
            prompts: What was responded to; one per response.
            responses: Text, without the stop token.
            answers: The right answers, from `data.answer`.
        """
        ...


@dataclass(frozen=True)
class MathReward:
    """1 where the response's answer equals the right one by math-verify, else 0; None where checking took too long.

    Attributes:
        marker: The answer is what follows the last of these, and a response without one is wrong; None: the whole text.
            In the right answer, too, only what follows the last marker counts, if it has one.
    """

    marker: str | None = None

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
        gold = _delimited(answer if cut is None else cut)
        if not verify(gold, gold):
            raise DataError(
                f"{prompt.id}: math-verify cannot read the right answer {answer!r}; correct the row, data.answer "
                "or reward.marker, or use reward.type=python"
            )
        text = self.found(response)
        if text is None:
            return 0.0
        verdict = verify(gold, text)
        return None if verdict is None else float(verdict)

    def found(self, response: str) -> str | None:
        """Where math-verify looks for the answer of a response; None where the marker is missing."""
        text = self._after_marker(response)
        return text if text is None or self.marker is None else _delimited(text)

    def _after_marker(self, text: str) -> str | None:
        """What follows the last marker; None where there is none."""
        if self.marker is None:
            return text
        _, marker, after = text.rpartition(self.marker)
        return after.strip() if marker else None


def _delimited(text: str) -> str:
    """Puts bare LaTeX between dollars: without them math-verify reads 2 in 2\\sqrt{3}."""
    bare = _BARE_LATEX.search(text) and not _DELIMITED_LATEX.search(text)
    return f"${text}$" if bare else text


@dataclass(frozen=True)
class PythonReward:
    """What a function of the user's says.

    It is called as `f(prompt, response, answer, row)` for each response and returns a number, or None for no verdict.

    Attributes:
        function: `file.py:name` or `package.module:name`.
    """

    function: str

    def __post_init__(self) -> None:
        _load(self.function)

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`.

        Raises:
            RewardError: The function raised, or returned something that is no reward.
        """
        judged = zip(prompts, responses, answers, strict=True)
        return [self._judge(prompt, response, answer) for prompt, response, answer in judged]

    def _judge(self, prompt: Prompt, response: str, answer: str) -> float | None:
        try:
            reward = _load(self.function)(prompt.text, response, answer, dict(prompt.row))
        except Exception as error:  # whatever the user's code raises, the message must say for which row
            raise RewardError(
                f"{prompt.id}: reward.function {self.function} raised {type(error).__name__}: {error}"
            ) from error
        if reward is None:
            return None
        if not isinstance(reward, numbers.Real) or not math.isfinite(reward):
            raise RewardError(
                f"{prompt.id}: reward.function {self.function} returned {reward!r}; return a finite number, or "
                "None for no verdict"
            )
        return float(reward)


def _load(function: str) -> Function:
    """Finds `file.py:name` or `package.module:name`."""
    place, _, name = function.rpartition(":")
    if not place or not name:
        raise RewardError(f"reward.function {function!r} is not of the form file.py:name or package.module:name")
    try:
        module = _module_of_file(Path(place).resolve()) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # the user's module may raise anything while it is imported
        what = f"{type(error).__name__}: {error}"
        raise RewardError(f"reward.function {function}: {place} cannot be imported ({what})") from error
    found = vars(module).get(name)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise RewardError(
            f"reward.function {function}: no function {name} in {place}; it has {', '.join(names) or 'none'}"
        )
    return cast(Function, found)


@functools.cache
def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"lockstep_reward_{keyed.key(str(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does: dataclasses, for one, look their module up there
    spec.loader.exec_module(module)
    return module


def build(section: RewardSection) -> Reward:
    """The reward that a recipe asks for.

    Raises:
        RewardError: Its function cannot be found.
    """
    if section.function is not None:
        return PythonReward(section.function)
    return MathReward(section.marker)
