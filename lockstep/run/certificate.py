"""The certificate of a run: how exactly sampler and learner agreed, by which kernels, where (`certificate.json`)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from lockstep.models.exact.attention import BLOCK
from lockstep.models.exact.linear import ROWS
from lockstep.monitor.agreement import Certificate
from lockstep.report.certificate import CERTIFICATE
from lockstep.run.machine import describe_machine
from lockstep.whole_files import write_whole
from lockstep_logprobs.softmax import TILE_COLUMNS

_EXACT = {
    "attention": f"fp32, {BLOCK} keys a product, products added in order",
    "linear": f"rows in multiples of {ROWS}",
    "softmax": f"{TILE_COLUMNS:,} columns a sum, powers of e",
}
_USUAL = {"attention": "scaled_dot_product_attention", "linear": "any number of rows", "softmax": "powers of 2"}


def write_certificate(folder: Path, step: int, certificate: Certificate) -> None:
    """Writes the certificate of a run into its folder, as of a step."""
    kernels = _EXACT if certificate.exact_kernels else _USUAL
    machine = {**describe_machine(), "cpu": torch.backends.cpu.get_cpu_capability()}
    known = {"step": step, **asdict(certificate), "kernels": kernels, "machine": machine}
    write_whole(folder / CERTIFICATE, [(json.dumps(known, indent=2) + "\n").encode()])
