"""Runs programs on your server by SandboxFusion's protocol: `POST {code, language, stdin, …}`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from lockstep.rewards.options import CodeSection

CodeTest = str | dict[str, str]
"""A test: Python code that uses the program's definitions, or an input and its expected output."""

_KEY = "SANDBOX_API_KEY"
_RETRIES = 5
_GRACE_S = 60.0  # for a busy server, in addition to the program's limit


class _RunResult(BaseModel):
    """The outcome of a program."""

    status: str
    return_code: int | None = None
    stdout: str | None = None


class _CodeServerReply(BaseModel):
    """A server's reply; other fields are ignored."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    run_result: _RunResult | None = None

    @property
    def output(self) -> str | None:
        """The program's output; None if it failed or reached a limit."""
        run = self.run_result
        if run is not None and run.status == "Finished" and run.return_code == 0:
            return run.stdout or ""
        return None


@dataclass(frozen=True)
class CodeServer:
    """A server that runs programs and is responsible for isolating them.

    Attributes:
        url: Address of the server.
        section: The limits of a program.
        option: Key of the section in the recipe, for messages.
        note: Shows a line.
    """

    url: str
    section: CodeSection
    option: str
    note: Callable[[str], object]

    def describe_strength(self) -> str:
        """Describes in one sentence what the sandbox blocks and allows."""
        return (
            f"at {self.url}; a program can tamper with tests in Python, which share its process "
            "there"
        )

    def run_tests(
        self, programs: Sequence[str | None], tests: Sequence[Sequence[CodeTest]]
    ) -> list[int]:
        """Runs programs against their tests; returns the number of tests that each passes.

        Raises:
            ServerError: After all retries the server is unreachable, refuses, or violates the
                protocol.
        """
        # imports the openai client
        from lockstep.servers.json_server import JsonServer, ServerAddress

        own = self.section
        mark = secrets.token_hex(16)
        address = ServerAddress(self.url, f"{self.option}.url", _KEY, own.sandboxes, _RETRIES)
        limits = {
            "language": "python",
            "run_timeout": own.wall_s,
            "memory_limit_MB": own.memory_mb,
        }
        asked: list[tuple[int, CodeTest]] = []
        bodies: list[dict[str, object]] = []
        for index, program in enumerate(programs):
            if program is None:
                continue
            for test in tests[index]:
                if isinstance(test, str):
                    body = {"code": f"{program}\n{test}\nprint('\\n{mark}')"}
                else:
                    body = {"code": program, "stdin": test.get("stdin", "")}
                asked.append((index, test))
                bodies.append({**body, **limits})

        def describe_fault(number: int, reply: _CodeServerReply) -> str | None:
            if reply.status == "SandboxError":
                return f"it could not run a program ({reply.message[:300]})"
            return None

        passed = [0] * len(programs)
        server = JsonServer(address, own.wall_s + _GRACE_S, self.note)
        for number, reply in server.request_all(_CodeServerReply, self.url, bodies, describe_fault):
            index, test = asked[number]
            passed[index] += judge_output(reply.output, test, mark)
        return passed


def judge_output(output: str | None, test: CodeTest, mark: str = "") -> bool:
    """True if a program printed the expected lines, or reached the marker at its end."""
    if output is None:
        return False
    if isinstance(test, str):
        return _split_lines(output)[-1:] == [mark]
    return _split_lines(output) == _split_lines(test["stdout"])


def _split_lines(text: str) -> list[str]:
    """Lines of output without trailing spaces and empty lines."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
