"""Rates of the machine, out of what was measured, for `lockstep plan --rates`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockstep.config.machinery import DType
from lockstep.plan.time import Engines, Rates, sampling_seconds
from lockstep_doctor.machine.checks import FEW_ROWS, Measured
from lockstep_doctor.machine.trial import TYPES, Trial

_SYNCS = "weight sync, cuda_ipc", "weight sync, shared_memory"
"""Carriers, the one first that colocated engines take by default."""


def find_rates(trial: Trial, measured: Mapping[str, Measured]) -> dict[DType, Rates]:
    """Rates in each type in which all was measured that they need."""
    needed = {dtype: {"copy", "products", f"learner, {dtype}", f"torch sampler, {dtype}"} for dtype in TYPES}
    sync = next((measured[name] for name in _SYNCS if name in measured), None)
    if sync is None:
        return {}
    return {dtype: _rates(trial, measured, dtype, sync) for dtype in TYPES if measured.keys() >= needed[dtype]}


def _rates(trial: Trial, measured: Mapping[str, Measured], dtype: DType, sync: Measured) -> Rates:
    """Rates in one type. The time of a layer is what a decoding pass takes besides products and reading."""
    products = measured["products"]
    known = Rates(
        products=1e12 * float(products[f"{dtype}, TFLOP/s"]),
        learner=float(measured[f"learner, {dtype}"]["share of products"]),
        memory=1e9 * float(products[f"{dtype}, weights read by {FEW_ROWS} rows, GB/s"]),
        layer_s=0.0,
        sync=1e9 * float(sync["sync GB/s"]),
        host=1e9 * float(measured["copy"]["from the host, GB/s"]),
    )
    rank, scale = trial.rank(dtype), trial.scale
    seconds = scale.rows * scale.response / float(measured[f"torch sampler, {dtype}"]["tokens/s"])
    left = seconds - sampling_seconds(rank, Engines(1, 1, scale.rows), scale.response, known)
    return replace(known, layer_s=max(0.0, left) / (scale.response * scale.layers))
