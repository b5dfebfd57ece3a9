"""The options of an engine of `lockstep_doctor`, as sections of recipes have them."""

from __future__ import annotations

from lockstep.config import Computation
from lockstep.core.errors import InputError
from lockstep.models.precision import TORCH_TYPES
from lockstep_doctor.engines import EngineOptions


def computation_of(options: EngineOptions) -> Computation:
    """The device and type of a computation.

    Raises:
        InputError: Lockstep computes in no such type.
    """
    names = {dtype: name for name, dtype in TORCH_TYPES.items()}
    if options.dtype not in names:
        raise InputError(
            f"Lockstep's engines compute in {' or '.join(TORCH_TYPES)}, not in {options.dtype}"
        )
    return Computation.model_validate({"device": options.device, "dtype": names[options.dtype]})
