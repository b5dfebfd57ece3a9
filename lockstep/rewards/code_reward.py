"""Rewards for programs: runs the response's program against its row's tests in a sandbox."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from lockstep.core.types import Prompt
from lockstep.data.templates import read_field
from lockstep.data.thoughts import drop_thought
from lockstep.helpers.sandbox.sandbox import CodeSandbox, ProgramLimits, SandboxError
from lockstep.rewards.code_blocks import find_code_blocks
from lockstep.rewards.code_server import CodeServer, CodeTest, judge_output
from lockstep.rewards.options import CodeSection
from lockstep.system.printable import print_note

_PYTHON = ("python", "python3", "py")
_ISOLATES = {"bubblewrap": True, "none": False}


@dataclass(frozen=True)
class CodeReward:
    """The share of a row's tests that the response's program passes; 0 without a program.

    Attributes:
        section: The field with the tests, how a program is found in a response, and its limits.
        option: Key of the section in the recipe, for messages.
        note: Shows the user a line.
    """

    section: CodeSection
    option: str = "reward.code"
    note: Callable[[str], object] = field(default=print_note, repr=False, compare=False)
    _runner: CodeSandbox | CodeServer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = self.section
        if own.url is None:
            runner = open_sandbox(own, self.option)
        else:
            runner = CodeServer(own.url, own, self.option, self.note)
        object.__setattr__(self, "_runner", runner)

    def describe_strength(self) -> str:
        """Describes in one sentence how programs are isolated from the machine."""
        return f"{self.option}: programs run {self._runner.describe_strength()}"

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`.

        Raises:
            SandboxError: A program could not be started.
        """
        programs: list[str | None] = []
        for prompt, response in zip(prompts, responses, strict=True):
            answer = drop_thought(response, prompt.text)
            match self.section.program:
                case "text":
                    # Python would read the space between prompt and response as an indent
                    programs.append(answer.lstrip())
                case "fenced":
                    programs.append(extract_code_block(answer))
                case _:
                    assert_never(self.section.program)
        tests: list[list[CodeTest]] = [
            read_field(prompt.row, self.section.tests) for prompt in prompts
        ]
        if isinstance(self._runner, CodeServer):
            return list(map(self._compute_reward, self._runner.run_tests(programs, tests), tests))
        pool = ThreadPoolExecutor(self.section.sandboxes)
        try:
            passed = pool.map(partial(self._run_in_sandbox, self._runner), programs, tests)
            return list(map(self._compute_reward, passed, tests))
        finally:
            pool.shutdown(cancel_futures=True)

    def _run_in_sandbox(
        self, sandbox: CodeSandbox, program: str | None, tests: Sequence[CodeTest]
    ) -> int:
        """Counts passed tests; with `all_or_nothing`, up to the first failed test."""
        passed = 0
        if program is None:
            return passed
        for test in tests:
            if isinstance(test, str):
                passes = sandbox.passes_test(program, test)
            else:
                passes = judge_output(sandbox.capture_output(program, test.get("stdin", "")), test)
            passed += passes
            if self.section.all_or_nothing and not passes:
                break
        return passed

    def _compute_reward(self, passed: int, tests: Sequence[CodeTest]) -> float:
        if self.section.all_or_nothing:
            return float(passed == len(tests))
        return passed / len(tests)


def open_sandbox(section: CodeSection, option: str = "reward.code") -> CodeSandbox:
    """Opens the sandbox of a code reward.

    Raises:
        SandboxError: Programs cannot run on this machine as the section requires.
    """
    limits = ProgramLimits(section.cpu_s, section.wall_s, section.memory_mb)
    sandbox = CodeSandbox(limits, _ISOLATES[section.isolation])
    try:
        sandbox.start()
    except SandboxError as error:
        advice = "see docs/guides/rewards.md"
        if sandbox.is_isolated:
            advice += f"; {option}.isolation=none runs them with your user's permissions"
        raise SandboxError(f"{option}: {error}; {advice}") from None
    return sandbox


def extract_code_block(answer: str) -> str | None:
    """The last fenced block marked as Python, else the last unmarked block, else None."""
    marked: str | None = None
    unmarked: str | None = None
    for block in find_code_blocks(answer):
        if block.language in _PYTHON:
            marked = block.text
        elif not block.language:
            unmarked = block.text
    return unmarked if marked is None else marked


def describe_test_fault(test: Any) -> str | None:
    """Returns the error in a row's test; None if it is valid."""
    if isinstance(test, str):
        try:
            with warnings.catch_warnings(action="ignore"):
                ast.parse(test)
        except (SyntaxError, ValueError) as error:
            return f"is invalid Python ({error})"
        return None
    known = isinstance(test, dict) and {"stdout"} <= test.keys() <= {"stdin", "stdout"}
    if not known or not all(isinstance(text, str) for text in test.values()):
        return 'is neither Python (text) nor {"stdin": text, "stdout": text}'
    return None
