"""Attestation: the weights of an inference engine after a weight sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WeightAttestation:
    """The weights that one engine holds after a weight sync.

    Tensors have the names under which they were sent.

    Attributes:
        version: Version of the weights.
        fingerprints: Fingerprint of each tensor (`weight_sync.fingerprints.fingerprint_tensor`),
            read from the memory that the engine computes with; for tensors in `columns` and
            `received`, of the bytes that arrived.
        columns: Fingerprints of packed matrices, read through the engine's kernels:
            `weight_sync.fingerprints.column_fingerprint` of the columns that it computes with.
        received: Tensors that cannot be read back, such as those from which the engine builds
            tables.
        tied: Maps tied tensors, which are not sent, to the name of the sent tensor.
        kept_caches: Caches that still depend on the old weights.
    """

    version: int
    fingerprints: Mapping[str, int]
    columns: Mapping[str, int] = field(default_factory=dict)
    received: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)
    kept_caches: tuple[str, ...] = ()
