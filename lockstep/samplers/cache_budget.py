"""The KV cache size of an engine: the same number in the plan and in the engine."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.config import SamplerSection
from lockstep.core.errors import InputError

USABLE = 0.92
"""Share of GPU memory for models.

The rest is for one process's CUDA, NCCL, recorded graphs and fragmentation.
"""

PROCESS_BYTES = 1 << 30
"""GPU bytes of each further process: half for its CUDA context, half for NCCL buffers."""


def usable_bytes(memory: int, processes: int) -> int:
    """Bytes of a GPU for models.

    Args:
        memory: Bytes of the GPU.
        processes: Number of processes on it.
    """
    return max(int(USABLE * memory) - max(processes - 1, 0) * PROCESS_BYTES, 0)


@dataclass(frozen=True)
class CacheBudget:
    """Bounds on the KV cache of an engine that allocates it at start, in bytes per device.

    Attributes:
        wanted: KV cache for the maximum number of concurrent sequences at full length.
        least: Minimum with which the engine starts.
        other: Everything else on the device: the engine's weights, and the learner's ranks at their
            peak.
        processes: Number of processes on the device, the engine's included.
    """

    wanted: int
    least: int
    other: int
    processes: int = 1

    def choose_bytes(self, memory: int) -> int:
        """Size of the cache on a device with this memory: `wanted`, but at most the free memory."""
        return max(self.least, min(self.wanted, memory - self.other))

    def apply_to_section(self, section: SamplerSection, memory: int) -> SamplerSection:
        """The section with that size, for a GPU with this memory.

        Raises:
            InputError: The cache does not fit.
        """
        memory = usable_bytes(memory, self.processes)
        if memory - self.other < self.least:
            raise InputError(
                f"models may use {memory / 1e9:.3g} GB of a GPU here, of which "
                f"{self.other / 1e9:.3g} GB are already planned, which leaves no room for keys "
                f"and values ({self.least / 1e9:.3g} GB at least); run `lockstep plan` to see "
                "what fits, or set sampler.kv_cache_gib"
            )
        return section.model_copy(update={"kv_cache_gib": self.choose_bytes(memory) / 2**30})
