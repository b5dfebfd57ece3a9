"""Results of programs in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProgramOutput:
    """The end of a program that read its input.

    Attributes:
        code: Its exit code, 128 + n if it was ended by the signal n, None if by its limit on the clock.
        output: What it printed; None where it failed.
    """

    code: int | None
    output: str | None


@dataclass(frozen=True)
class ProgramResult:
    """The outcome of a test.

    Attributes:
        passed: True if the test ran to its end.
        why: The reason for which it did not; None where it did.
        tampering: Signs that the program attempted to cheat the test.
    """

    passed: bool
    why: str | None
    tampering: tuple[str, ...]
