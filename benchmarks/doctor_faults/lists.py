"""All faults, by mechanism, split and round."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.doctor_faults import (
    attention,
    batches,
    caches,
    drawing,
    embeddings,
    experts,
    loading,
    normalization,
    numerics,
    positions,
    projections,
    scoring,
    transport,
    weights,
)
from benchmarks.doctor_faults.fault import Fault

MECHANISMS: Mapping[str, tuple[Fault, ...]] = {
    "weights": weights.FAULTS,
    "loading": loading.FAULTS,
    "embeddings and logits": embeddings.FAULTS,
    "rotary and positions": positions.FAULTS,
    "attention": attention.FAULTS,
    "normalization": normalization.FAULTS,
    "projections": projections.FAULTS,
    "MLP and experts": experts.FAULTS,
    "types, sums, chance": numerics.FAULTS,
    "caches": caches.FAULTS,
    "batches": batches.FAULTS,
    "scoring": scoring.FAULTS,
    "drawing": drawing.FAULTS,
    "transport": transport.FAULTS,
}
"""Each has a file of its own."""
MECHANISM_OF = {fault.number: mechanism for mechanism, faults in MECHANISMS.items() for fault in faults}
FAULTS = tuple(sorted((fault for faults in MECHANISMS.values() for fault in faults), key=lambda fault: fault.number))
NUMBERED = {fault.number: fault for fault in FAULTS}
TUNING = tuple(fault for fault in FAULTS if fault.split == "tuning")
HELD_OUT = tuple(fault for fault in FAULTS if fault.split == "held-out")
"""Written without sight of any rule of the doctor, and of none of the other lists."""


def of_round(number: int) -> tuple[Fault, ...]:
    """The faults of one round."""
    return tuple(fault for fault in FAULTS if fault.round == number)
