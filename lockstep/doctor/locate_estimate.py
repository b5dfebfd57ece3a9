"""Memory of `lockstep doctor locate`, said before a model is opened.

    weights    of both engines: a learner's in fp32, all others' in the type in which they compute; those of plain
               `transformers` in the type of their files, and of one block in float64: the largest layer, and all that
               is outside of layers
    values     what is seen at the cuts: twice of both engines and of plain `transformers`, and of float64; of the
               weights of a block, a copy for each engine whose operators read them
    logits     five of a sequence in fp32, and two in float64
    again      both engines in fp32, where they disagree and are measured under another setting

An engine of other processes has memory of its own beside its weights, such as vLLM's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lockstep.doctor.estimate import peak_bytes
from lockstep.errors import InputError
from lockstep.learners.saving import free_memory_bytes
from lockstep.models.folder import read_config, skeleton
from lockstep.plan.sizes import Sizes
from lockstep.units import readable
from lockstep_doctor.hf import read_type
from lockstep_doctor.witness import find_blocks

_FP32, _FP64 = 4, 8
_VALUES, _LOGITS = 5, 5


@dataclass(frozen=True)
class LocateEstimate:
    """Memory of a pair of engines.

    Attributes:
        weights: Bytes of all weights.
        values: Bytes beside them.
        here: Bytes that this process holds before.
        again: Bytes of both engines beside themselves, under another setting.
    """

    weights: int
    values: int
    here: int
    again: int

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.weights + self.values + self.here

    @property
    def sentence(self) -> str:
        """The figures in words."""
        more = f"; {readable(self.again)} more to measure other settings where two engines disagree"
        return f"predicted: {readable(self.total)}, of which weights {readable(self.weights)}{more}"

    def require(self, free: int) -> None:
        """Refuses what does not fit.

        Args:
            free: Bytes that the machine can still give; 0: it does not say.

        Raises:
            InputError: If it is more.
        """
        needed = self.total - self.here
        if free and needed > free:
            raise InputError(
                f"locate needs {readable(needed)}, and {readable(free)} are free: shorten grid.lengths, "
                "set learner.dtype=bf16, or save the model in bf16"
            )


def estimate_locate(folder: str, engines: Sequence[tuple[bool, torch.dtype]], tokens: int) -> LocateEstimate:
    """Estimates the memory of a pair.

    Args:
        folder: The model's.
        engines: Of each, if it is a learner, and the type in which it computes.
        tokens: Of the longest sequence.
    """
    model = skeleton(read_config(folder), folder)
    sizes = Sizes.of(model)
    count = sum(weight.numel() for weight in model.parameters())
    (_, rest), *layers = [(module, sum(weight.numel() for weight in some)) for module, some in find_blocks(model)]
    block = rest + max(size for _, size in layers)
    weights = sum(count * (_FP32 if learner else dtype.itemsize) for learner, dtype in engines)
    plain = count * read_type(Path(folder)).itemsize + block * _FP64
    width = max(dtype.itemsize for _, dtype in engines)
    layer = 8 * sizes.hidden + 2 * sizes.queries + 4 * sizes.keys + 3 * sizes.intermediate
    values = sizes.layers * layer * (_VALUES * width + _FP64)
    logits = sizes.vocabulary * (_LOGITS * _FP32 + 2 * _FP64)
    beside = tokens * (values + logits) + block * width * len(engines)
    return LocateEstimate(weights + plain, beside, peak_bytes(), count * _FP32 * len(engines))


def free_bytes(device: torch.device) -> int:
    """Bytes that a device can still give; 0: it does not say."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory_bytes()
