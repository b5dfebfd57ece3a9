"""Rewards for programs: the response's program runs against the tests of its row, in a sandbox."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, assert_never

from lockstep.core.types import Prompt
from lockstep.data.notes import note
from lockstep.data.rows import Row
from lockstep.data.templates import complaint, read_field
from lockstep.data.thoughts import drop_thought
from lockstep.helpers.sandbox.sandbox import Limits, ProgramResult, Sandbox, SandboxError
from lockstep.rewards.base import DetailedReward, Verdicts
from lockstep.rewards.code_blocks import find_code_blocks
from lockstep.rewards.code_server import CodeServer, Test, judge_output
from lockstep.rewards.options import CodeSection

_PYTHON = ("python", "python3", "py")
_FILE_MB, _PROCESSES = 8, 8


@dataclass(frozen=True)
class CodeReward(DetailedReward):
    """The share of a row's tests that the response's program passes; 0 where there is no program.

    Attributes:
        section: The field with the tests, how a program is found in a response, and its limits.
        option: Its key in the recipe, for messages.
        note: Shows the user a line.
    """

    section: CodeSection
    option: str = "reward.code"
    note: Callable[[str], object] = field(default=note, repr=False, compare=False)
    _place: Sandbox | CodeServer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = self.section
        place = open_sandbox(own, self.option) if own.url is None else CodeServer(own.url, own, self.option, self.note)
        object.__setattr__(self, "_place", place)

    def strength(self) -> str:
        """Describes in one sentence how programs are isolated from the rest of the machine."""
        return f"{self.option}: programs run {self._place.strength()}"

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]) -> Verdicts:
        """Runs the programs of responses against the tests of their rows.

        Raises:
            SandboxError: A program could not be run.
        """
        programs = [
            self._program(drop_thought(response, prompt.text))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        tests: list[list[Test]] = [read_field(prompt.row, self.section.tests) for prompt in prompts]
        results = self._run(programs, tests)
        rewards: list[float | None] = [
            self._reward(own, len(wanted)) for own, wanted in zip(results, tests, strict=True)
        ]
        return Verdicts(rewards, [any(result.tampering for result in own) for own in results])

    def _run(self, programs: Sequence[str | None], tests: Sequence[Sequence[Test]]) -> list[list[ProgramResult]]:
        """Results of each program's tests; none for a response without a program."""
        if isinstance(self._place, CodeServer):
            asked = [
                (program, test)
                for program, own in zip(programs, tests, strict=True)
                if program is not None
                for test in own
            ]
            found = iter(self._place.run_tests(asked))
            return [
                [] if program is None else [next(found) for _ in own]
                for program, own in zip(programs, tests, strict=True)
            ]
        pool = ThreadPoolExecutor(self.section.sandboxes)
        try:
            return list(pool.map(partial(self._run_here, self._place), programs, tests))
        finally:
            pool.shutdown(cancel_futures=True)

    def _run_here(self, sandbox: Sandbox, program: str | None, tests: Sequence[Test]) -> list[ProgramResult]:
        found: list[ProgramResult] = []
        for test in tests if program is not None else ():
            assert program is not None, "its tests are run"
            if isinstance(test, str):
                found.append(sandbox.test(program, test))
            else:
                found.append(judge_output(sandbox.output(program, test.get("stdin", "")), test))
            if self.section.all_or_nothing and not found[-1].passed:
                break
        return found

    def _reward(self, results: Sequence[ProgramResult], tests: int) -> float:
        share = sum(result.passed for result in results) / tests
        return float(share == 1.0) if self.section.all_or_nothing else share

    def _program(self, answer: str) -> str | None:
        match self.section.program:
            case "text":
                return answer.lstrip()  # Python reads the space between prompt and response as an indent
            case "fenced":
                return extract_code_block(answer)
            case _:
                assert_never(self.section.program)


def open_sandbox(section: CodeSection, option: str = "reward.code") -> Sandbox:
    """Opens the sandbox of a code reward.

    Raises:
        SandboxError: Programs cannot be run here as the section asks.
    """
    limits = Limits(section.cpu_s, section.wall_s, section.memory_mb, _FILE_MB, _PROCESSES)
    sandbox = Sandbox(limits, section.isolation)
    try:
        sandbox.start()
    except SandboxError as error:
        advice = "docs/guides/rewards.md says what it needs"
        if sandbox.is_isolated:
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
