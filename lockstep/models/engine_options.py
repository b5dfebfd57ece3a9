"""The options of an engine of `lockstep_doctor`, as sections of recipes have them."""

from __future__ import annotations

import torch

from lockstep.config import Computation
from lockstep.errors import InputError
from lockstep_doctor.engines import EngineOptions

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def computation_of(options: EngineOptions) -> Computation:
    """The device and type of a computation.

    Raises:
        InputError: Lockstep computes in no such type.
    """
    if options.dtype not in _DTYPES:
        raise InputError(f"Lockstep's engines compute in fp32 and bf16, and not in {options.dtype}")
    return Computation.model_validate({"device": options.device, "dtype": _DTYPES[options.dtype]})
