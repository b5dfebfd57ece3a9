"""Rewards of responses: by math-verify, by checks and tests of their rows, or by a function of the user's.

A reward may be None, "no verdict": it could not be decided, so the response counts neither for nor against anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, assert_never

from lockstep import exit_codes
from lockstep.config import RewardSection, Verifier
from lockstep.config.named_code import name_code
from lockstep.data.notes import note
from lockstep.data.rows import DataError, Row
from lockstep.data.selection import Rule
from lockstep.data.templates import complaint
from lockstep.errors import InputError, shorten
from lockstep.fault_policy import Attempts
from lockstep.helpers.in_process import build_child, say_slow
from lockstep.helpers.printable import make_printable
from lockstep.helpers.process import Child, ChildDied, ChildError, ChildHangs
from lockstep.rewards import code_reward, instruction_reward, reward_function
from lockstep.rewards.code_reward import CodeReward
from lockstep.rewards.instruction_reward import InstructionReward
from lockstep.rewards.math_verifier import verify
from lockstep.types import Prompt

JUDGE, UNREWARDED = "judge", "none"
"""Words of a row in place of a verifier: a judge rewards it, or nothing does."""
_SET_UP = "the recipe sets up what its rows may name"

NO_ANSWERS = Rule(lambda row: None, "no reward reads an answer", lambda row: False)
"""The rule for rows whose responses are not compared with a right answer."""
_UNREAD = """data.answer='""' asks for none, where reward.function reads none"""

_BARE_LATEX = re.compile(r"[\\^]")
_DELIMITED_LATEX = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


class RewardError(InputError):
    """A reward function that cannot be found or breaks its contract; the message says which and where."""


class RewardLost(RewardError):
    """A reward function could not be asked, for a reason that may pass; the same command resumes the run."""

    exit_code = exit_codes.CRASH


class Reward(Protocol):
    """A function that scores responses."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """Returns one reward per response; None: no verdict.

        Args:
            prompts: The prompts, one per response.
            responses: Text as it continues the prompt, without the stop token.
            answers: The right answers, from `data.answer`.
        """
        ...


@dataclass(frozen=True)
class MathReward:
    """Reward 1 if the response's answer equals the right one by math-verify, else 0; None if checking took too long.

    Attributes:
        marker: The answer follows the last marker, and a response without one is wrong; None: the whole text.
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
        gold = _delimit(answer if cut is None else cut)
        if not verify(gold, gold):
            raise DataError(
                f"{prompt.id}: math-verify cannot read the right answer {shorten(answer)!r}; correct the row, "
                "data.answer or reward.marker, or use reward.type=python"
            )
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


@dataclass(frozen=True)
class PythonReward:
    """Reward by a function of the user's.

    It is called as `f(prompt, response, answer, row)` for each response and returns a number, or None for no verdict.
    It lives in a process of its own, from the first response of a run to the last: its module's state persists,
    and where it hangs or crashes the run can say so.

    Attributes:
        function: `file.py:name` or `package.module:name`.
        timeout_s: The longest it may take over one response.
        confined: True to run it behind the sandbox's filters.
        note: Shows the user a line.
    """

    function: str
    timeout_s: float
    confined: bool = False
    note: Callable[[str], object] = field(default=note, repr=False, compare=False)
    _child: Child = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_child", build_child(reward_function.__name__, self.function, self.confined))
        self._start()

    def _start(self) -> None:
        """Starts the process, where none runs.

        Raises:
            RewardError: Its import fails.
        """
        attempts, imported = Attempts("helper", self.note), f"reward.function {self.function}: importing it"
        while True:
            try:
                self._child.start(partial(say_slow, f"reward.function {self.function}"))
                return
            except ChildError as error:
                raise RewardError(str(error)) from None
            except ChildHangs:
                raise RewardError(f"{imported} takes too long") from None
            except ChildDied as error:
                died = f"{imported} ended the process ({error})"
                if not error.may_pass:
                    raise RewardError(died) from None
            if not attempts.again(died):
                raise RewardLost(f"{died}, {attempts.used + 1} times in a row")

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`.

        Raises:
            RewardError: The function raised, returned something that is no reward, hung, or ended its process.
        """
        judged = zip(prompts, responses, answers, strict=True)
        questions = [(prompt.text, response, answer, dict(prompt.row)) for prompt, response, answer in judged]
        found, faults, deaths = dict[int, float | None](), Attempts("reward", self.note), Attempts("helper", self.note)
        while missing := [place for place in range(len(questions)) if place not in found]:
            try:
                lost, attempts = self._ask(prompts, questions, missing, found), faults
            except _Killed as killed:
                lost, attempts = str(killed), deaths
            if lost and not attempts.again(lost):
                raise RewardLost(f"{lost}, {attempts.used + 1} times in a row; the same command resumes the run")
        return [found[place] for place in range(len(questions))]

    def _ask(
        self,
        prompts: Sequence[Prompt],
        questions: Sequence[tuple[object, ...]],
        missing: Sequence[int],
        found: dict[int, float | None],
    ) -> str:
        """Takes the missing rewards into `found`; returns a fault that may pass where one is still missing."""
        self._start()
        try:
            with self._child.ask_streaming([questions[place] for place in missing]) as reply:
                return self._read_rewards(prompts, missing, reply, found)
        except ChildDied as error:  # while it was told what to score
            raise _Killed(f"reward.function {self.function}: its process ended ({error})") from None

    def _read_rewards(
        self,
        prompts: Sequence[Prompt],
        missing: Sequence[int],
        reply: Callable[[float], Any],
        found: dict[int, float | None],
    ) -> str:
        """Reads the replies about responses; see `_ask`."""
        lost = ""
        for place in missing:
            try:
                found[place] = self._read_reward(prompts[place], reply)
            except _Lost as error:
                lost = lost or str(error)
        return lost

    def _read_reward(self, prompt: Prompt, reply: Callable[[float], Any]) -> float | None:
        """Reads the reply about a response; raises _Lost or _Killed where another attempt may have one."""
        asked = f"{prompt.id}: reward.function {self.function}"
        try:
            result = reply(self.timeout_s)
        except ChildHangs:
            raise RewardError(
                f"{asked} did not answer within {self.timeout_s:g} s and was ended; let it return None for what takes "
                "long, or raise reward.timeout_s"
            ) from None
        except ChildDied as error:
            if error.may_pass:
                raise _Killed(f"{asked} ended its process ({error})") from None
            raise RewardError(f"{asked} ended its process ({error}); run it alone on this row to see why") from None
        if not isinstance(result, dict) or not result.keys() & {"wrong", "reward"}:
            raise RewardError(f"{asked} wrote into the connection of its process; let it print instead")
        if "wrong" not in result:
            return result["reward"]
        wrong = f"{asked} {make_printable(result['wrong'])}"
        if result["may_pass"]:
            raise _Lost(wrong)
        error = RewardError(wrong)
        error.add_note(make_printable(result["trace"]))
        raise error


class _Lost(Exception):
    """A reward function failed in a way that may pass, such as a lost connection; the text says over what."""


class _Killed(Exception):
    """A reward function's process was killed; the text says over what."""


@dataclass(frozen=True)
class ByRow:
    """Reward by the verifier that the row names; None where the row names none.

    Attributes:
        field: Field of the row with the name of its verifier.
        verifiers: Rewards by name.
    """

    field: str
    verifiers: Mapping[str, Reward]

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        return self.judge(prompts, responses, answers).rewards

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]) -> Verdicts:
        """Rewards responses, each by its verifier."""
        rewards: list[float | None] = [None] * len(prompts)
        tampering = [False] * len(prompts)
        for name, verifier in self.verifiers.items():
            own = [i for i, prompt in enumerate(prompts) if prompt.row[self.field] == name]
            found = judge(verifier, [prompts[i] for i in own], [responses[i] for i in own], [answers[i] for i in own])
            for place, i in enumerate(own):
                rewards[i] = found.rewards[place]
                tampering[i] = found.tampering is not None and found.tampering[place]
        looks = any(isinstance(verifier, CodeReward) for verifier in self.verifiers.values())
        return Verdicts(rewards, tampering if looks else None)


@dataclass(frozen=True)
class Verdicts:
    """Rewards of responses.

    Attributes:
        rewards: One for each; None: no verdict.
        tampering: Marks the responses that attempted to cheat; None if the reward does not look for that.
    """

    rewards: list[float | None]
    tampering: list[bool] | None


def judge(reward: Reward, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]) -> Verdicts:
    """Rewards responses, and says which attempted to cheat, where the reward can tell; arguments as of `Reward`."""
    if isinstance(reward, CodeReward):
        found = reward.judge(prompts, responses)
        return Verdicts([verdict.reward for verdict in found], [verdict.tampering for verdict in found])
    if isinstance(reward, ByRow):
        return reward.judge(prompts, responses, answers)
    return Verdicts(reward(prompts, responses, answers), None)


@dataclass(frozen=True)
class NoReward:
    """No verdict on any response: something else scores."""

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`."""
        return [None] * len(responses)


def build(section: RewardSection | None, say: Callable[[str], None] = lambda text: None) -> Reward:
    """Builds the reward of a recipe; without a section, no reward.

    Args:
        section: The section.
        say: Is told what keeps a policy's programs from the rest of the machine, and what is tried again.

    Raises:
        RewardError: Its function cannot be found.
        SandboxError: Programs cannot be run in a sandbox here.
    """
    if section is None:
        return NoReward()
    match section.type:
        case "by_row":
            assert section.verifier is not None, "the recipe names the field"
            return ByRow(section.verifier, {name: _verifier(section, name, say) for name in section.verifiers})
        case "math" | "instructions" | "code" | "python":
            return _verifier(section, section.type, say)
        case _:
            assert_never(section.type)


def _verifier(section: RewardSection, name: Verifier, say: Callable[[str], None]) -> Reward:
    match name:
        case "math":
            return MathReward(section.marker)
        case "instructions":
            assert section.instructions is not None, _SET_UP
            return InstructionReward(section.instructions)
        case "code":
            assert section.code is not None, _SET_UP
            reward = CodeReward(section.code)
            say(reward.strength())
            return reward
        case "python":
            assert section.function is not None, _SET_UP
            name_code("reward.function", section.function)
            return PythonReward(section.function, section.timeout_s, section.confined, say)
        case _:
            assert_never(name)


def find_unverified(section: RewardSection | None, prompts: Sequence[Prompt]) -> list[bool]:
    """Marks the prompts that are left to a judge, since no program can score their responses."""
    if section is None or section.verifier is None:
        return [section is None] * len(prompts)
    return [prompt.row[section.verifier] == JUDGE for prompt in prompts]


def rule_of(section: RewardSection | None, judge: bool = False) -> Rule:
    """The requirements of a recipe's reward on rows.

    Args:
        section: The reward section; None: there is no reward.
        judge: True if a judge rewards the rows that say `judge`.
    """
    if section is None:
        return NO_ANSWERS
    fields = (
        section.verifier,
        section.instructions and section.instructions.field,
        section.code and section.code.tests,
    )
    unread = "" if section.function is None else _UNREAD
    key = (section.type, section.verifiers, fields, judge, instruction_reward.KNOWN)
    match section.type:
        case "by_row":
            assert section.verifier is not None, "the recipe names the field"
            return Rule(_FaultByRow(section.verifier, section, judge), key, partial(_reads_answer, section), unread)
        case "math" | "instructions" | "code" | "python":
            return Rule(partial(_fault, section, section.type), key, partial(_reads_answer, section), unread)
        case _:
            assert_never(section.type)


def _reads_answer(section: RewardSection, row: Row) -> bool:
    """True if a row's verifier reads the right answer."""
    named = section.type if section.verifier is None else row.get(section.verifier)
    return any(name == named and _compares(name) for name in section.verifiers)


def _compares(name: Verifier) -> bool:
    """True if a verifier reads the right answer."""
    match name:
        case "math" | "python":
            return True
        case "instructions" | "code":
            return False
        case _:
            assert_never(name)


def _fault(section: RewardSection, name: Verifier, row: Row) -> str | None:
    """The fault of a row for a verifier; None if there is none."""
    match name:
        case "math" | "python":
            return None
        case "instructions":
            assert section.instructions is not None, _SET_UP
            return instruction_reward.fault(row, section.instructions.field)
        case "code":
            assert section.code is not None, _SET_UP
            return code_reward.fault(row, section.code.tests)
        case _:
            assert_never(name)


@dataclass(frozen=True)
class _FaultByRow:
    """Finds the fault of a row that names its verifier; None if there is none.

    Attributes:
        field: Field of the row with the name.
        section: Configures the verifiers.
        judge: True if a row may name the judge.
    """

    field: str
    section: RewardSection
    judge: bool

    def __call__(self, row: Row) -> str | None:
        named = row.get(self.field)
        for name in self.section.verifiers:
            if named == name:
                return _fault(self.section, name, row)
        others = (UNREWARDED, JUDGE) if self.judge else (UNREWARDED,)
        if named in others:
            return None
        known = ", ".join((*self.section.verifiers, *others))
        return complaint(row, {self.field: "text"}) or (
            f"names in the field {self.field!r} the verifier {named!r}; this recipe has: {known}"
        )
