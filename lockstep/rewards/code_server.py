"""Programs that a server of yours runs, by SandboxFusion's protocol: `POST {code, language, stdin,
…}`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from lockstep.rewards.options import CodeSection

Test = str | dict[str, str]
"""Python that uses what the program defines, or its input and what it must print."""

_KEY = "SANDBOX_API_KEY"
_RETRIES = 5
_GRACE_S = 60.0  # for a busy server, besides the limit of the program


class _Run(BaseModel):
    """The end of a program."""

    status: str
    return_code: int | None = None
    stdout: str | None = None


class _Reply(BaseModel):
    """A server's reply; other fields of it are passed over."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    run_result: _Run | None = None

    @property
    def output(self) -> str | None:
        """Output of the program; None if it failed or reached a limit."""
        run = self.run_result
        if run is not None and run.status == "Finished" and run.return_code == 0:
            return run.stdout or ""
        return None


@dataclass(frozen=True)
class CodeServer:
    """A server that runs programs, whose isolation is its own.

    Attributes:
        url: Its address.
        section: The limits of a program.
        option: Key of its section in the recipe, for messages.
        note: Shows the user a line.
    """

    url: str
    section: CodeSection
    option: str
    note: Callable[[str], object]

    def strength(self) -> str:
        """Describes in a sentence what the sandbox stops, and what not."""
        return (
            f"at {self.url}; a program can tamper with tests in Python, which share its process "
            "there"
        )

    def run_tests(
        self, programs: Sequence[str | None], tests: Sequence[Sequence[Test]]
    ) -> list[int]:
        """Runs programs against their tests; returns how many each passes.

        Raises:
            ServerError: The server cannot be reached, refuses, or does not answer in the protocol,
                after all retries.
        """
        # imports openai's client
        from lockstep.servers.json_server import JsonServer, ServerAddress

        own = self.section
        mark = secrets.token_hex(16)
        address = ServerAddress(self.url, f"{self.option}.url", _KEY, own.sandboxes, _RETRIES)
        asked = [
            (place, program, test)
            for place, program in enumerate(programs)
            if program is not None
            for test in tests[place]
        ]
        bodies = [self._build_request(program, test, mark) for _, program, test in asked]
        passed = [0] * len(programs)
        server = JsonServer(address, own.wall_s + _GRACE_S, self.note)
        for number, reply in server.answers(
            _Reply, self.url, bodies, lambda number, reply: _find_fault(reply)
        ):
            place, _, test = asked[number]
            passed[place] += judge_output(reply.output, test, mark)
        return passed

    def _build_request(self, program: str, test: Test, mark: str) -> dict[str, object]:
        limits = {"run_timeout": self.section.wall_s, "memory_limit_MB": self.section.memory_mb}
        if isinstance(test, str):
            return {
                "code": f"{program}\n{test}\nprint('\\n{mark}')",
                "language": "python",
                **limits,
            }
        return {"code": program, "stdin": test.get("stdin", ""), "language": "python", **limits}


def _find_fault(reply: _Reply) -> str | None:
    if reply.status == "SandboxError":
        return f"it could not run a program ({reply.message[:300]})"
    return None


def judge_output(output: str | None, test: Test, mark: str = "") -> bool:
    """Compares what a program printed with what its test wants: its lines, or that it came to the
    mark at its end.
    """
    if output is None:
        return False
    if isinstance(test, str):
        return _split_lines(output)[-1:] == [mark]
    return _split_lines(output) == _split_lines(test["stdout"])


def _split_lines(text: str) -> list[str]:
    """Lines of output, without trailing space and trailing empty lines."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
