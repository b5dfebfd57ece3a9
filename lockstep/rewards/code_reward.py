"""Rewards for programs: the response's program runs against the tests of its row, in a sandbox."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, assert_never

from lockstep.data.rows import Row
from lockstep.data.templates import complaint, read_field
from lockstep.data.thoughts import drop_thought
from lockstep.helpers.sandbox.jail import Limits
from lockstep.helpers.sandbox.results import ProgramResult
from lockstep.helpers.sandbox.sandbox import Sandbox, SandboxError
from lockstep.rewards.base import DetailedReward, Verdicts
from lockstep.rewards.code_blocks import find_code_blocks
from lockstep.rewards.options import CodeSection
from lockstep.types import Prompt

_PYTHON = ("python", "python3", "py")

Test = Callable[[Sandbox, str], ProgramResult]
"""Returns whether a program passes."""


@dataclass(frozen=True)
class CodeVerdict:
    """The reward of a response, and whether its program attempted to cheat a test."""

    reward: float
    tampering: bool


@dataclass(frozen=True)
class CodeReward(DetailedReward):
    """The share of a row's tests that the response's program passes; 0 where there is no program.

    Attributes:
        section: The field with the tests, how a program is found in a response, and its limits.
        option: Its key in the recipe, for messages.
    """

    section: CodeSection
    option: str = "reward.code"
    _sandboxes: tuple[Sandbox, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = self.section
        limits = Limits(own.cpu_s, own.wall_s, own.memory_mb, own.file_mb, own.processes)
        sandboxes = tuple(Sandbox(limits, own.isolation) for _ in range(own.sandboxes))
        object.__setattr__(self, "_sandboxes", sandboxes)
        try:
            sandboxes[0].start()
        except SandboxError as error:
            raise SandboxError(
                f"{self.option}: {error}; {self._advise(limits)}docs/guides/rewards.md says what it needs"
            ) from None

    def strength(self) -> str:
        """Describes in one sentence how programs are isolated from the rest of the machine."""
        return f"{self.option}.isolation={self.section.isolation} is {self._sandboxes[0].strength()}"

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]) -> Verdicts:
        """Runs the programs of responses against the tests of their rows.

        Raises:
            SandboxError: A program could not be run.
        """
        idle: SimpleQueue[Sandbox] = SimpleQueue()
        for sandbox in self._sandboxes:
            idle.put(sandbox)

        def score_one(prompt: Prompt, response: str) -> CodeVerdict:
            sandbox = idle.get()
            try:
                return self._score(sandbox, prompt, response)
            finally:
                idle.put(sandbox)

        pool = ThreadPoolExecutor(len(self._sandboxes))
        try:
            found = list(pool.map(score_one, prompts, responses))
        finally:
            pool.shutdown(cancel_futures=True)
        return Verdicts([verdict.reward for verdict in found], [verdict.tampering for verdict in found])

    def _advise(self, limits: Limits) -> str:
        """Names the next weaker isolation, if this machine supports it."""
        match self.section.isolation:
            case "namespaces":
                sandbox = Sandbox(limits, "filters")
            case "filters" | "limits":
                return ""
            case _:
                assert_never(self.section.isolation)
        try:
            return f"{self.option}.isolation=filters can be had here, and is {sandbox.strength()}; "
        except SandboxError:
            return ""
        finally:
            sandbox.close()

    def _program(self, answer: str) -> str | None:
        match self.section.program:
            case "text":
                return answer.lstrip()  # Python reads the space between prompt and response as an indent
            case "fenced":
                return extract_code_block(answer)
            case _:
                assert_never(self.section.program)

    def _score(self, sandbox: Sandbox, prompt: Prompt, response: str) -> CodeVerdict:
        program = self._program(drop_thought(response, prompt.text))
        if program is None:
            return CodeVerdict(0.0, tampering=False)
        tests = [_test(item) for item in read_field(prompt.row, self.section.tests)]
        verdicts: list[ProgramResult] = []
        for test in tests:
            verdicts.append(test(sandbox, program))
            if self.section.all_or_nothing and not verdicts[-1].passed:
                break
        share = sum(verdict.passed for verdict in verdicts) / len(tests)
        reward = float(share == 1.0) if self.section.all_or_nothing else share
        return CodeVerdict(reward, any(verdict.tampering for verdict in verdicts))


def extract_code_block(answer: str) -> str | None:
    """The last fenced block that is marked as Python, or else the last that is not marked; None if there is none."""
    blocks = list(find_code_blocks(answer))
    marked = [block.text for block in blocks if block.language in _PYTHON]
    unmarked = [block.text for block in blocks if not block.language]
    return next(reversed(marked or unmarked), None)


def fault(row: Row, name: str) -> str | None:
    """Returns what is wrong with the tests in a field of a row; None if nothing is."""
    wrong = complaint(row, {name: "list"})
    if wrong is not None:
        return wrong
    if not read_field(row, name):
        return f"has in the field {name!r} no test"
    for number, item in enumerate(read_field(row, name), start=1):
        wrong = _fault(item)
        if wrong is not None:
            return f"has in the field {name!r} a test, number {number}, that {wrong}"
    return None


def _fault(item: Any) -> str | None:
    if isinstance(item, str):
        return _syntax_fault(item)
    known = isinstance(item, dict) and {"stdout"} <= item.keys() <= {"stdin", "stdout"}
    if not known or not all(isinstance(text, str) for text in item.values()):
        return 'is neither Python (text) nor {"stdin": text, "stdout": text}'
    return None


def _syntax_fault(code: str) -> str | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(code)
    except (SyntaxError, ValueError) as error:
        return f"is no Python ({error})"
    return None


def _test(item: str | dict[str, str]) -> Test:
    """Builds the check of one test, which is valid."""
    if isinstance(item, str):
        return lambda sandbox, program: sandbox.test(program, item)
    expected, given = _lines(item["stdout"]), item.get("stdin", "")

    def prints(sandbox: Sandbox, program: str) -> ProgramResult:
        output = sandbox.output(program, given)
        same = output is not None and _lines(output) == expected
        return ProgramResult(same, None if same else "printed something else", ())

    return prints


def _lines(text: str) -> list[str]:
    """Lines of output, without trailing space and trailing empty lines."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
