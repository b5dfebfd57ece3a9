"""The findings of a recipe's check: every problem, and a short report of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lockstep.errors import InputError, LockstepError
from lockstep.report.terminal import summary_table


class DryRunError(InputError):
    """The problems that would stop a run before its first step; one sentence per line."""


@dataclass
class Findings:
    """Findings collected while checks run.

    Attributes:
        problems: Problems that would stop the run, one sentence each.
        lines: Lines of the report, as (subject, text).
        notes: Things that could not be known, or may surprise.
    """

    problems: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def problem(self) -> Iterator[None]:
        """Turns an error inside the block into a problem, so that the checks after it still run."""
        try:
            yield
        except (LockstepError, OSError) as error:
            sentence = str(error)
            if sentence not in self.problems:
                self.problems.append(sentence)

    def say(self, about: str, text: str) -> None:
        """Adds a line to the report."""
        self.lines.append((about, text))

    def report(self) -> str:
        """The lines as a table, then the notes.

        Raises:
            DryRunError: If there are problems.
        """
        if self.problems:
            raise DryRunError("\n".join(self.problems))
        return "\n".join([summary_table(self.lines), *(f"note: {note}" for note in self.notes)])
