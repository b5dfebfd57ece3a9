"""`lockstep gpu-check`: runs all checks, prints a table, and writes the results as JSON to send."""

from __future__ import annotations

import gc
import json
import math
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from lockstep.config.machinery import Computation, DType
from lockstep.core import exit_codes
from lockstep.core.errors import BrokenPromiseError, InputError, LockstepError
from lockstep.models.device import resolve_device
from lockstep.plan.time import DeviceRates, EngineCounts, sampling_seconds
from lockstep.report.progress import show_progress
from lockstep.report.terminal import markdown_table
from lockstep.run.folder.machine import describe_machine
from lockstep_doctor.machine.checks import FEW_ROWS, CheckFigures, list_checks
from lockstep_doctor.machine.trial import TYPES, MachineTrial, WorkloadSize

CheckState = Literal["ok", "skipped", "failed", "broken"]
"""`broken`: a guarantee does not hold on this machine. `failed`: the check could not run."""

_SYNCS = "weight sync, cuda_ipc", "weight sync, shared_memory"
"""Weight sync checks; the default of colocated engines comes first."""

_PACKAGES = ("triton", "vllm", "flash-attn", "megatron-core", "ray")


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of one check.

    Attributes:
        check: Its name.
        state: Result.
        measured: Measurements.
        note: Why it has no measurements.
        seconds: Time taken.
        trace: Traceback of a check that failed.
    """

    check: str
    state: CheckState
    measured: CheckFigures
    note: str = ""
    seconds: float = 0.0
    trace: str = ""


def check_machine(device: str, out: Path) -> int:
    """Checks this machine.

    Args:
        device: `auto`, `cuda` or `cpu`.
        out: Folder of `gpu_check.json`.

    Returns:
        The exit code: 0, 4 if a guarantee is broken, or 1 if a check failed.

    Raises:
        InputError: The device does not exist.
    """
    chosen = resolve_device(Computation.model_validate({"device": device}).device)
    machine = describe_devices(chosen)
    outcomes = list[CheckOutcome]()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, show_progress(f"gpu-check → {out}") as progress:
        with progress.phase("make a model"):
            trial = MachineTrial.create_in(
                Path(folder),
                chosen,
                _count_gpus(chosen),
                WorkloadSize.for_memory(_device_memory(chosen)),
            )
        checks = list_checks(trial)
        progress.set_total(len(checks), "takes a few minutes", unit="check")
        for number, (name, measure) in enumerate(checks.items(), start=1):
            with progress.phase(name):
                outcomes.append(_run_check(name, measure))
            progress.end_step(number, {}, 0)
        rates = find_rates(
            trial,
            {outcome.check: outcome.measured for outcome in outcomes if outcome.state == "ok"},
        )
    found = {
        "machine": dict(machine),
        "rates": {dtype: asdict(own) for dtype, own in rates.items()},
        "checks": list(map(asdict, outcomes)),
    }
    (out / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for key, text in machine.items():
        print(f"{key}: {text}")
    print(f"\n{_render_table(outcomes)}")
    print(
        f"{out}/gpu_check.json has the full results; please attach it to an issue, even if "
        "everything is ok"
    )
    states = {outcome.state for outcome in outcomes}
    if "broken" in states:
        return exit_codes.BROKEN
    if "failed" in states:
        return exit_codes.CRASH
    return exit_codes.OK


def _run_check(name: str, measure: Callable[[], CheckFigures]) -> CheckOutcome:
    """Runs one check; turns an error into its outcome."""
    gc.collect()
    torch.cuda.empty_cache()  # frees memory of earlier checks
    begun = time.monotonic()
    try:
        measured = measure()
    except InputError as error:
        return CheckOutcome(name, "skipped", {}, str(error))
    except BrokenPromiseError as error:
        return CheckOutcome(name, "broken", {}, str(error), time.monotonic() - begun)
    # on an unknown machine a check may fail in any way; the other checks still run
    except Exception as error:
        if isinstance(error, LockstepError):
            note = str(error)
        else:
            note = f"{type(error).__name__}: {error}".splitlines()[0]
        return CheckOutcome(
            name, "failed", {}, note, time.monotonic() - begun, traceback.format_exc()
        )
    return CheckOutcome(name, "ok", measured, "", time.monotonic() - begun)


def find_rates(
    trial: MachineTrial, measured: Mapping[str, CheckFigures]
) -> dict[DType, DeviceRates]:
    """Rates for `lockstep plan --rates`, for each dtype whose checks all succeeded."""
    sync = next((measured[name] for name in _SYNCS if name in measured), None)
    if sync is None:
        return {}
    rates = dict[DType, DeviceRates]()
    for dtype in TYPES:
        needed = {"copy", "products", f"learner, {dtype}", f"torch sampler, {dtype}"}
        if measured.keys() >= needed:
            rates[dtype] = _find_rates_in(trial, measured, dtype, sync)
    return rates


def _find_rates_in(
    trial: MachineTrial, measured: Mapping[str, CheckFigures], dtype: DType, sync: CheckFigures
) -> DeviceRates:
    """Rates for one dtype.

    The time of a layer is the rest of a decoding pass after products and memory reads.
    """
    products = measured["products"]
    known = DeviceRates(
        products=1e12 * float(products[f"{dtype}, TFLOP/s"]),
        learner=float(measured[f"learner, {dtype}"]["share of products"]),
        memory=1e9 * float(products[f"{dtype}, weights read by {FEW_ROWS} rows, GB/s"]),
        layer_s=0.0,
        sync=1e9 * float(sync["sync GB/s"]),
        host=1e9 * float(measured["copy"]["from the host, GB/s"]),
    )
    rank = trial.build_plan_rank(dtype)
    scale = trial.scale
    seconds = scale.rows * scale.response / float(measured[f"torch sampler, {dtype}"]["tokens/s"])
    left = seconds - sampling_seconds(rank, EngineCounts(1, 1, scale.rows), scale.response, known)
    return replace(known, layer_s=max(0.0, left) / (scale.response * scale.layers))


def describe_devices(device: torch.device) -> Mapping[str, str]:
    """Describes the machine, its devices, and versions of packages that a run does not record."""
    gpus = list(map(torch.cuda.get_device_name, range(_count_gpus(device))))
    found = {
        "device": f"{len(gpus)} × {', '.join(sorted(set(gpus)))}" if gpus else "CPU",
        "memory": f"{(_device_memory(device) or 0) / 1e9:.0f} GB each" if gpus else "",
        "CUDA": str(torch.version.cuda or "none"),
    }
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {key: str(text) for key, text in {**describe_machine(), **found}.items() if text}


def _render_table(outcomes: Sequence[CheckOutcome]) -> str:
    """The table, as Markdown."""
    rows: list[list[str]] = []
    for one in outcomes:
        measured = ", ".join(
            f"{name} {_format_value(value)}" for name, value in one.measured.items()
        )
        rows.append([one.check, one.state, f"{one.seconds:.1f}", one.note or measured])
    return markdown_table(["check", "", "seconds", "measured"], rows)


def _format_value(value: float | str) -> str:
    if isinstance(value, str):
        return value
    whole = math.isfinite(value) and (value == int(value) or abs(value) >= 1000)
    if whole:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _count_gpus(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.device_count()
    return 0


def _device_memory(device: torch.device) -> int | None:
    """Bytes of the first GPU; None: the device is a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    return None
