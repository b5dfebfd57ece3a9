"""Rewards for programs: the response's program runs against the tests of its row, in a sandbox."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, assert_never

from lockstep.data.rows import Row
from lockstep.data.templates import complaint, read_field
from lockstep.data.thoughts import drop_thought
from lockstep.helpers.sandbox.sandbox import Limits, ProgramResult, Sandbox, SandboxError
from lockstep.rewards.base import DetailedReward, Verdicts
from lockstep.rewards.code_blocks import find_code_blocks
from lockstep.rewards.options import CodeSection
from lockstep.types import Prompt

_PYTHON = ("python", "python3", "py")


@dataclass(frozen=True)
class CodeReward(DetailedReward):
    """The share of a row's tests that the response's program passes; 0 where there is no program.

    Attributes:
        section: The field with the tests, how a program is found in a response, and its limits.
        option: Its key in the recipe, for messages.
    """

    section: CodeSection
    option: str = "reward.code"
    _sandbox: Sandbox = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sandbox", open_sandbox(self.section, self.option))

    def strength(self) -> str:
        """Describes in one sentence how programs are isolated from the rest of the machine."""
        return f"{self.option}: programs run {self._sandbox.strength()}"

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]) -> Verdicts:
        """Runs the programs of responses against the tests of their rows.

        Raises:
            SandboxError: A program could not be run.
        """
        pool = ThreadPoolExecutor(self.section.sandboxes)
        try:
            found = list(pool.map(self._score, prompts, responses))
        finally:
            pool.shutdown(cancel_futures=True)
        return Verdicts([reward for reward, _ in found], [tampering for _, tampering in found])

    def _program(self, answer: str) -> str | None:
        match self.section.program:
            case "text":
                return answer.lstrip()  # Python reads the space between prompt and response as an indent
            case "fenced":
                return extract_code_block(answer)
            case _:
                assert_never(self.section.program)

    def _score(self, prompt: Prompt, response: str) -> tuple[float, bool]:
        """The reward of a response, and whether its program attempted to cheat a test."""
        program = self._program(drop_thought(response, prompt.text))
        if program is None:
            return 0.0, False
        tests = read_field(prompt.row, self.section.tests)
        passed, tampering = 0, False
        for test in tests:
            result = _run_test(self._sandbox, program, test)
            passed += result.passed
            tampering = tampering or bool(result.tampering)
            if self.section.all_or_nothing and not result.passed:
                return 0.0, tampering
        return passed / len(tests), tampering


def open_sandbox(section: CodeSection, option: str = "reward.code") -> Sandbox:
    """Opens the sandbox of a code reward.

    Raises:
        SandboxError: Programs cannot be run here as the section asks.
    """
    limits = Limits(section.cpu_s, section.wall_s, section.memory_mb, section.file_mb, section.processes)
    sandbox = Sandbox(limits, section.isolation)
    try:
        sandbox.start()
    except SandboxError as error:
        advice = "docs/guides/rewards.md says what it needs"
        if section.isolation != "none":
            advice += f"; {option}.isolation=none runs them with your rights"
        raise SandboxError(f"{option}: {error}; {advice}") from None
    return sandbox


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


def _run_test(sandbox: Sandbox, program: str, test: str | dict[str, str]) -> ProgramResult:
    """Runs one test, which is valid."""
    if isinstance(test, str):
        return sandbox.test(program, test)
    output = sandbox.output(program, test.get("stdin", ""))
    same = output is not None and _lines(output) == _lines(test["stdout"])
    return ProgramResult(same, None if same else "printed something else", ())


def _lines(text: str) -> list[str]:
    """Lines of output, without trailing space and trailing empty lines."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
