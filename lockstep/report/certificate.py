"""Reads a run's certificate: its level and the evidence for it, as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.system.records import is_file, read_record

CERTIFICATE = "certificate.json"
"""The certificate of a run, in its folder (`lockstep.run.folder.certificate`)."""

_WORDS = {
    "none": "not measured",
    "E0": "watched, not exact",
    "E1": "bounded, not exact",
    "E2": "exact",
    "E3": "exact in any batch",
    "E4": "exact in any batch and tested layout",
}


@dataclass(frozen=True)
class ReadCertificate:
    """A certificate as read from its file.

    Attributes:
        level: E0 to E4, or none (docs/concepts/exactness.md).
        tokens: Number of compared tokens.
        mismatches: Number of compared tokens that are not bitwise equal.
        largest_gap: Largest |Δ| of a token, nats.
        not_recomputed: Number of tokens that were not compared.
        reason: Why the level is not E2; None if it is.
        http_episodes: Number of episodes of agents, whose tokens came through HTTP.
    """

    level: Literal["none", "E0", "E1", "E2", "E3", "E4"]
    tokens: int
    mismatches: int
    largest_gap: float
    not_recomputed: int
    reason: str | None
    http_episodes: int = 0

    @classmethod
    def from_file(cls, file: Path) -> ReadCertificate | None:
        """Reads a certificate; None if missing, as in a new run or one without sampling."""
        if not is_file(file):
            return None
        return read_record(file, cls, "remove it; the run rewrites it at its next save")

    @property
    def sentence(self) -> str:
        """The level, and the figures behind it."""
        if self.not_recomputed:
            left = f"; {self.not_recomputed:,} not recomputed"
        else:
            left = ""
        why = "" if self.reason is None else f", because {self.reason}"
        if self.http_episodes:
            source = f"of {self.http_episodes:,} episodes through HTTP "
        else:
            source = ""
        return (
            f"{self.level}, {_WORDS[self.level]}: {self.tokens:,} tokens {source}compared, "
            f"{self.mismatches:,} not bitwise equal, largest gap {self.largest_gap:g} "
            f"nats{left}{why}"
        )
