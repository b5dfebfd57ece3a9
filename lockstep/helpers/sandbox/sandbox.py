"""The asking side of the sandbox: the output of a program, and whether test code passes with it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockstep import exit_codes
from lockstep.errors import InputError
from lockstep.helpers.process import Child, ChildDied, ChildError, ChildHangs
from lockstep.helpers.sandbox import warden
from lockstep.helpers.sandbox.jail import Isolation, Limits
from lockstep.helpers.sandbox.results import ProgramOutput, ProgramResult

_GRACE_S = 60.0  # for a warden on a busy machine, besides the limit of the program
_VERSION = ".".join(map(str, sys.version_info[:2]))
_INTERPRETER = os.path.realpath(f"{sys.base_exec_prefix}/bin/python{_VERSION}")


class SandboxError(InputError):
    """Programs cannot be run in a sandbox; the message says why."""


class SandboxLost(SandboxError):
    """The process that starts programs was lost; the same command resumes the run."""

    exit_code = exit_codes.CRASH


@dataclass(frozen=True)
class Sandbox:
    """Runs untrusted Python programs, one at a time; usable from any thread.

    Attributes:
        limits: Limits of each program.
        isolation: What keeps them from the rest of the machine.
        interpreter: The Python that runs them, with its standard library and no other packages.
    """

    limits: Limits
    isolation: Isolation = "namespaces"
    interpreter: str = _INTERPRETER
    _warden: Child = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        options = {"limits": asdict(self.limits), "isolation": self.isolation, "interpreter": self.interpreter}
        object.__setattr__(self, "_warden", Child(warden.__name__, json.dumps(options)))

    def start(self) -> None:
        """Starts the sandbox, if programs can run here.

        Raises:
            SandboxError: They cannot.
        """
        try:
            self._warden.start()
        except (ChildError, ChildDied, ChildHangs) as error:
            raise SandboxError(f"programs cannot be run in a sandbox here ({error})") from None

    def strength(self) -> str:
        """Describes in a sentence what the sandbox stops, and what not; errors as `output`."""
        return self._ask(None)

    def output(self, program: str, given: str) -> str | None:
        """Returns what a program prints that reads `given`; None where it fails or reaches a limit.

        Raises:
            SandboxError: It could not be run.
        """
        return ProgramOutput(**self._run_to_end(program, given, tested=False)).output

    def test(self, program: str, test: str) -> ProgramResult:
        """Runs test code in a process of its own, which asks the program's for plain values; errors as `output`."""
        found = ProgramResult(**self._run_to_end(program, test, tested=True))
        return replace(found, tampering=tuple(found.tampering))

    def close(self) -> None:
        """Ends the process that starts programs."""
        self._warden.close()

    def _run_to_end(self, program: str, given: str, tested: bool) -> dict[str, Any]:
        ended = self._ask({"program": program, "input": given, "tested": tested})
        if "wrong" in ended:
            raise SandboxError(f"a program could not be run in a sandbox ({ended['wrong']}); the same command resumes")
        return ended

    def _ask(self, question: dict[str, Any] | None) -> Any:
        self.start()
        try:
            with self._warden.ask_streaming(question) as reply:
                return reply(self.limits.wall_s + _GRACE_S)
        except (ChildDied, ChildHangs) as error:
            how = f"ended ({error})" if isinstance(error, ChildDied) else "does not answer"
            raise SandboxLost(
                f"the process that starts programs in a sandbox {how}; the same command resumes"
            ) from None
