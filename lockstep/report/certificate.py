"""The certificate of a run, read for people: its level in words, and what that rests on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CERTIFICATE = "certificate.json"
"""The certificate of a run, in its folder (`lockstep.run.certificate`)."""

_WORDS = {
    "none": "not measured",
    "E0": "watched, not exact",
    "E1": "bounded, not exact",
    "E2": "exact",
    "E3": "exact in any batch",
}
_LEVELS = {
    "none": "No token was compared.",
    "E0": "The gap of sampler and learner is logged at each step.",
    "E1": "The gap of sampler and learner stays under its bound, or the run stops.",
    "E2": "Each token that was compared has the same log-probability sampled and trained, bit for bit.",
    "E3": "The same, in any batch.",
}


@dataclass(frozen=True)
class ReadCertificate:
    """A certificate as it was written.

    Attributes:
        level: E0 to E3, or none (docs/glossary.md).
        tokens: Tokens compared.
        not_recomputed: Tokens that were not.
        mismatches: Tokens compared that are not equal to the bit.
        largest_gap: Of a token, nats.
        reason: Why the level is not E2; None: it is.
        kernels: How both sides compute, by part of the model.
        machine: Versions and machine.
    """

    level: str
    tokens: int
    not_recomputed: int
    mismatches: int
    largest_gap: float
    reason: str | None
    kernels: Mapping[str, str]
    machine: Mapping[str, str | int]

    @classmethod
    def of(cls, file: Path) -> ReadCertificate | None:
        """Reads a certificate; None where there is none: a run has just begun, or samples nothing."""
        if not file.is_file():
            return None
        known = json.loads(file.read_text(encoding="utf-8"))
        later = {"not_recomputed": 0, "reason": None}  # which older runs do not have
        return cls(**{name: known.get(name, later.get(name)) for name in cls.__dataclass_fields__})

    @property
    def sentence(self) -> str:
        """The level in a word, and the figures."""
        left = f"; {self.not_recomputed:,} not recomputed" if self.not_recomputed else ""
        why = "" if self.reason is None else f", because {self.reason}"
        return (
            f"{self.level}, {_WORDS[self.level]}: {self.tokens:,} tokens compared, {self.mismatches:,} not equal to "
            f"the bit, largest gap {self.largest_gap:g} nats{left}{why}"
        )

    @property
    def meaning(self) -> str:
        """The level in a sentence."""
        return _LEVELS[self.level]

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yields all that the level rests on, by name."""
        yield "tokens compared", f"{self.tokens:,}"
        yield "not equal to the bit", f"{self.mismatches:,}"
        yield "tokens not recomputed", f"{self.not_recomputed:,}"
        yield "largest gap", f"{self.largest_gap:g} nats"
        if self.reason is not None:
            yield "why not E2", self.reason
        for name, value in self.kernels.items():
            yield name, value
        for name, value in self.machine.items():
            yield name, str(value)


def describe_certificate(folder: Path) -> str | None:
    """Describes the certificate of a run; None where there is none."""
    file = folder / CERTIFICATE
    found = ReadCertificate.of(file)
    return None if found is None else f"{found.sentence} ({file})"
