"""A reward function of the user's, as its child process sees it: found, looked at, and called (see `child`).

Imports nothing heavy, so that the child holds what the function needs and no more.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from lockstep.experience.child import Answers

Function = Callable[[str, str, str, dict[str, Any]], float | None]


def answers(function: str) -> Answers:
    """In the child: reads a list of [prompt, response, answer, row], and says one reward, or what went wrong, for each.

    Raises:
        ValueError: If there is no such function, or it does not take four arguments.
    """
    judge = load(function)

    def judged(question: list[list[Any]]) -> Iterator[dict[str, Any]]:
        return (_judged(judge, given) for given in question)

    return judged


def load(function: str) -> Function:
    """Finds `file.py:name` or `package.module:name`; raises as `answers`."""
    place, _, name = function.rpartition(":")
    if not place or not name:
        raise ValueError(f"reward.function {function!r} is not of the form file.py:name or package.module:name")
    try:
        module = _module_of_file(Path(place).resolve()) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # the user's module may raise anything while it is imported
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"reward.function {function}: {place} cannot be imported ({what})") from error
    found = vars(module).get(name)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(
            f"reward.function {function}: no function {name} in {place}; it has {', '.join(names) or 'none'}"
        )
    _takes_four(found, function)
    return cast(Function, found)


def _takes_four(found: Callable[..., Any], function: str) -> None:
    try:
        signature = inspect.signature(found)
    except ValueError:  # some that are written in C have none to look at
        return
    try:
        signature.bind("prompt", "response", "answer", {})
    except TypeError:
        raise ValueError(
            f"reward.function {function} takes {signature}, but is called with (prompt, response, answer, row); "
            "let it take these four"
        ) from None


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"lockstep_reward_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses, for one, look their module up there
    spec.loader.exec_module(module)
    return module


def _judged(judge: Function, given: list[Any]) -> dict[str, Any]:
    try:
        reward = judge(*given)
    except Exception as error:  # whatever the user's code raises
        frame = traceback.extract_tb(error.__traceback__)[:2][-1]  # of the function itself, whatever it called
        what = f"raised {type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
        return {"wrong": what, "trace": traceback.format_exc()}
    if reward is None:
        return {"reward": None}
    if not isinstance(reward, numbers.Real) or not math.isfinite(reward):
        return {"wrong": f"returned {reward!r}; return a finite number, or None for no verdict", "trace": ""}
    return {"reward": float(reward)}
