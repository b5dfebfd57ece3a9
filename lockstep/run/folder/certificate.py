"""Certificates (`certificate.json` of a run): how exactly sampler and learner agreed.

They include the kernels and the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lockstep.models.exact.attention import BLOCK
from lockstep.monitor.agreement import ExactnessCertificate
from lockstep.run.folder.machine import describe_machine
from lockstep.system.whole_files import write_whole
from lockstep_logprobs.hidden import ROWS
from lockstep_logprobs.softmax import TILE_COLUMNS

_EXACT = {
    "attention": f"fp32, {BLOCK} keys a product, products added in order",
    "linear": f"rows in multiples of {ROWS}",
    "softmax": f"{TILE_COLUMNS:,} columns a sum, powers of e",
}
_EXACT_ON_GPUS = (
    "replaced by the Triton kernels of lockstep/models/exact/fused and lockstep_logprobs/fused"
)
_FUSED = "scaled_dot_product_attention"
_ON_GPUS = f"varlen_attn of packed sequences where `lockstep gpu-check` says so, else {_FUSED}"


def write_certificate(
    file: Path, certificate: ExactnessCertificate, about: Mapping[str, Any]
) -> None:
    """Writes a certificate with kernels and machine, after the keys of `about`."""
    attention = _ON_GPUS if torch.cuda.is_available() else _FUSED
    usual = {"attention": attention, "linear": "any number of rows", "softmax": "powers of 2"}
    exact = _EXACT | (
        {"if learner.device is a GPU": _EXACT_ON_GPUS} if torch.cuda.is_available() else {}
    )
    kernels = exact if certificate.exact_kernels else usual
    machine = {**describe_machine(), "cpu": torch.backends.cpu.get_cpu_capability()}
    known = {**about, **asdict(certificate), "kernels": kernels, "machine": machine}
    write_whole(file, [(json.dumps(known, indent=2) + "\n").encode()])
