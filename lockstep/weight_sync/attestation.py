"""The attestation of an inference engine after a weight sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Attestation:
    """The weights that one engine holds after a weight sync.

    Names are those of the weights that were sent.

    Attributes:
        version: Version of the weights.
        fingerprints: Fingerprint of each tensor (`weight_sync.fingerprints.fingerprint`), read from
            the memory that the engine computes with; for tensors in `columns` and `received`, of
            the bytes that arrived.
        columns: Fingerprints of matrices that the engine keeps packed, read through its kernels:
            `weight_sync.fingerprints.column_fingerprint` of the columns that it computes with.
        received: Tensors that could not be read back at all, such as those from which the engine
            builds own tables.
        tied: Maps tensors that were not sent, since they are tied, to the name of the tensor that
            was.
        kept_caches: Caches that still depend on old weights.
    """

    version: int
    fingerprints: Mapping[str, int]
    columns: Mapping[str, int] = field(default_factory=dict)
    received: frozenset[str] = frozenset()
    tied: Mapping[str, str] = field(default_factory=dict)
    kept_caches: tuple[str, ...] = ()
