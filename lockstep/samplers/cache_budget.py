"""The size of an engine's KV cache: the same number in the plan and in the engine."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.config import SamplerSection
from lockstep.core.errors import InputError

USABLE = 0.92
"""Share of a GPU's memory that models may use: CUDA, NCCL, recorded graphs and fragmentation of one
process need the rest.
"""

PROCESS_BYTES = 1 << 30
"""Bytes that each further process takes of a GPU besides: its CUDA context and the buffers of NCCL,
half each.
"""


def usable_bytes(memory: int, processes: int) -> int:
    """Bytes of a GPU that models may use.

    Args:
        memory: Bytes of the GPU.
        processes: Number of processes that compute on it.
    """
    return max(int(USABLE * memory) - max(processes - 1, 0) * PROCESS_BYTES, 0)


@dataclass(frozen=True)
class CacheBudget:
    """The room that the plan leaves for the KV cache of an engine that reserves it at its start,
    bytes per device.

    Attributes:
        wanted: KV cache of as many of the longest sequences as are generated side by side.
        least: The fewest bytes with which the engine starts.
        beside: Everything else on the device: the engine's weights, and the learner's ranks at
            their peak.
        processes: Number of processes on the device, the engine's included.
    """

    wanted: int
    least: int
    beside: int
    processes: int = 1

    def choose(self, memory: int) -> int:
        """The size of the cache on a device with so much memory: as much as is wanted, or as there
        is room for.
        """
        return max(self.least, min(self.wanted, memory - self.beside))

    def apply(self, section: SamplerSection, memory: int) -> SamplerSection:
        """The section with that size, for a GPU of so many bytes.

        Raises:
            InputError: There is no room.
        """
        memory = usable_bytes(memory, self.processes)
        if memory - self.beside < self.least:
            raise InputError(
                f"models may use {memory / 1e9:.3g} GB of a GPU here, of which "
                f"{self.beside / 1e9:.3g} GB are taken by plan, so that keys and values "
                f"({self.least / 1e9:.3g} GB at the least) have no room; `lockstep plan` says what "
                "fits, and sampler.kv_cache_gib sets another size"
            )
        return section.model_copy(update={"kv_cache_gib": self.choose(memory) / 2**30})
