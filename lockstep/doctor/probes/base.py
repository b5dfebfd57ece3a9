"""What a probe is, and what it can say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.doctor.base import Side
from lockstep.doctor.case import Case, Counter


@dataclass(frozen=True)
class Finding:
    """A cause that a probe suspects.

    Attributes:
        cause: Its name in `causes.CAUSES`.
        side: Which side is wrong, as far as the probe can tell.
        evidence: What was seen, one line each.
        setting: The counter-setting, for people.
        counter: The same as a function; None: none can be tried.
        least: Share of the gap that the counter-setting has to take away, for the suspicion to stand at all. More for a
            cause that is named for want of a better one.
        moved: Nats by which the counter-setting moves the numbers, if it can be tried only once, as a cache that was
            dropped is stale no more; None: it can be tried again.
        rough: The counter-setting leaves something where it is right.
        covers: The counter-setting takes away whatever else is wrong there, too, so that it only tells of what is left
            behind other findings.
    """

    cause: str
    side: Side | None
    evidence: tuple[str, ...]
    setting: str = ""
    counter: Counter | None = None
    least: float = 0.1
    moved: float | None = None
    rough: bool = False
    covers: bool = False


@dataclass(frozen=True)
class Clean:
    """The probe found nothing; says what it looked at."""

    why: str


@dataclass(frozen=True)
class Skipped:
    """The probe could not look; says why."""

    why: str


FOR_WANT_OF_A_BETTER = 0.7

SIDES: tuple[Side, ...] = ("train", "infer")

Outcome = Finding | Clean | Skipped


@dataclass(frozen=True)
class Probe:
    """A probe.

    Attributes:
        name: For people.
        examine: Looks at a case, given the causes that were refused before.
        facts: Whether it looks at facts, which count even where they make no more than rounding does.
        small: Whether it is asked about what a rough counter-setting has left, too.
    """

    name: str
    examine: Callable[[Case, Sequence[str]], Outcome]
    facts: bool = False
    small: bool = True
