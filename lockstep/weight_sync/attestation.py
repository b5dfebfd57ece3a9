"""The attestation of an inference engine after a weight sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Attestation:
    """The weights that one engine holds after a weight sync. Names are those of the weights that were sent.

    Attributes:
        version: Version of the weights.
        fingerprints: Fingerprint of each tensor (`weight_sync.fingerprints.fingerprint`), read from the memory that the
            engine computes with; of those in `columns` and `received`, of the bytes that came.
        columns: Fingerprints of matrices that the engine keeps packed, which only shows in what it computes:
            `weight_sync.fingerprints.column_fingerprint` of the columns that it computes with.
        received: Tensors that could not be read back at all; the engine makes its own tables of them, for instance.
        tied: Tensors that were not sent, since they are others under a second name, with that of the other.
        kept_caches: Caches that still depend on old weights.
    """

    version: int
    fingerprints: Mapping[str, int]
    columns: Mapping[str, int] = field(default_factory=dict)
    received: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)
    kept_caches: tuple[str, ...] = ()
