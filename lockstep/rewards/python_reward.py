"""Rewards by a user-defined function in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.core.types import Prompt
from lockstep.helpers.in_process import build_child
from lockstep.helpers.process import ChildDied, ChildError, ChildHangs, HelperProcess
from lockstep.rewards import reward_function
from lockstep.rewards.base import RewardError, RewardLost
from lockstep.system.fault_policy import FaultSource, RetryCounter
from lockstep.system.printable import make_printable, print_note


@dataclass(frozen=True)
class PythonReward:
    """Rewards by a user-defined function.

    It is called as `f(prompt, response, answer, row)` for each response and returns a number, or
    None for no verdict; a batch function is called once with lists and returns a list. Functions
    with TRL's or verl's arguments get those. An `async def` is called for several responses
    concurrently. The function runs in one separate process for the whole run: its module's state
    persists, and the run can report hangs and crashes.

    Attributes:
        function: `file.py:name` or `package.module:name`.
        timeout_s: Time limit of a call, seconds.
        note: Shows a line.
        batch: True to call the function once for all responses.
        option: Key of the section in the recipe, for messages.
    """

    function: str
    timeout_s: float
    note: Callable[[str], object] = field(default=print_note, repr=False, compare=False)
    batch: bool = False
    option: str = "reward"
    _child: HelperProcess = field(init=False, repr=False, compare=False)
    _has_scored: bool = field(init=False, default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        batch = ("batch",) if self.batch else ()
        object.__setattr__(
            self,
            "_child",
            build_child(reward_function.__name__, self.function, self.option, *batch),
        )
        self._start_process()

    @property
    def _function_key(self) -> str:
        return f"{self.option}.function {self.function}"

    def _start_process(self) -> None:
        """Starts the process if it is not running.

        Raises:
            RewardError: The import of the function fails.
        """
        try:
            self._child.start()
        except ChildError as error:
            kind = RewardLost if error.may_pass else RewardError
            raise kind(str(error)) from None

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`.

        Raises:
            RewardError: The function raised, returned an invalid reward, hung, or ended its
                process.
        """
        judged = zip(prompts, responses, answers, strict=True)
        questions = [
            (prompt.text, response, answer, dict(prompt.row), prompt.messages)
            for prompt, response, answer in judged
        ]
        found: dict[int, float | None] = {}
        attempts = {
            "reward": RetryCounter("reward", self.note),
            "helper": RetryCounter("helper", self.note),
        }
        while missing := [index for index in range(len(questions)) if index not in found]:
            try:
                self._ask_function(prompts, questions, missing, found)
            except _LostReward as lost:
                if lost.source == "helper":  # a call of all responses may have lost some replies
                    found = {}
                used = attempts[lost.source]
                if not used.wait_for_retry(str(lost)):
                    raise RewardLost(
                        f"{lost}, {used.used + 1} times in a row; the same command resumes the run"
                    ) from None
        if found and not self._has_scored:
            object.__setattr__(self, "_has_scored", True)
            if set(found.values()) == {None}:
                self.note(
                    f"{self._function_key} returned None, which is no verdict, for all "
                    f"{len(found)} responses of its first call; does it end without return?"
                )
        return [found[index] for index in range(len(questions))]

    def _ask_function(
        self,
        prompts: Sequence[Prompt],
        questions: Sequence[tuple[object, ...]],
        missing: Sequence[int],
        found: dict[int, float | None],
    ) -> None:
        """Adds missing rewards to `found`; raises _LostReward if any failed temporarily."""
        self._start_process()
        try:
            with self._child.ask_streaming([questions[index] for index in missing]) as reply:
                lost = [self._read_reward(prompts[index], index, reply, found) for index in missing]
        except ChildDied as error:  # while the question was being written to it
            raise _LostReward(
                "helper", f"{self._function_key}: its process died ({error})"
            ) from None
        if any(lost):
            raise _LostReward("reward", next(filter(None, lost)))

    def _read_reply(self, prompt: Prompt, reply: Callable[[float], Any]) -> dict[str, Any]:
        """Reads the reply about a response; raises _LostReward if a retry may help."""
        asked = f"{prompt.id}: {self._function_key}"
        try:
            result = reply(self.timeout_s)
        except ChildHangs:
            raise RewardError(
                f"{asked} timed out after {self.timeout_s:g} s; return None for slow inputs, or "
                f"raise {self.option}.timeout_s"
            ) from None
        except ChildDied as error:
            if error.may_pass:
                raise _LostReward("helper", f"{asked} crashed its process ({error})") from None
            raise RewardError(
                f"{asked} crashed its process ({error}); run it on this row alone to find out why"
            ) from None
        if not isinstance(result, dict) or not result.keys() & {"wrong", "reward"}:
            raise RewardError(f"{asked} wrote to the pipe of its process; use print instead")
        return result

    def _read_reward(
        self,
        prompt: Prompt,
        index: int,
        reply: Callable[[float], Any],
        found: dict[int, float | None],
    ) -> str:
        """Adds a reward to `found`; returns the temporary failure, or an empty text."""
        result = self._read_reply(prompt, reply)
        if "wrong" not in result:
            found[index] = result["reward"]
            return ""
        wrong = make_printable(result["wrong"])
        if result["of_all"]:
            wrong = f"{self._function_key}, called on a batch, {wrong}"
        else:
            wrong = f"{prompt.id}: {self._function_key} {wrong}"
        if result["may_pass"]:
            return wrong
        error = RewardError(wrong)
        error.add_note(make_printable(result["trace"]))
        raise error


class _LostReward(Exception):
    """A reward function failed temporarily: a lost connection or a killed process."""

    def __init__(self, source: FaultSource, text: str) -> None:
        super().__init__(text)
        self.source: FaultSource = source
