"""Converts `EngineOptions` to recipe sections."""

from __future__ import annotations

from lockstep.config import Computation
from lockstep.core.errors import InputError
from lockstep.models.precision import TORCH_TYPES
from lockstep_doctor.engines import EngineOptions


def computation_of(options: EngineOptions) -> Computation:
    """The computation section for an engine's options.

    Raises:
        InputError: Lockstep does not compute in the type.
    """
    names = {dtype: name for name, dtype in TORCH_TYPES.items()}
    if options.dtype not in names:
        raise InputError(
            f"Lockstep's engines compute in {' or '.join(TORCH_TYPES)}, not in {options.dtype}"
        )
    return Computation.model_validate({"device": options.device, "dtype": names[options.dtype]})
