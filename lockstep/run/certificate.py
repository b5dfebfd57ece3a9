"""The certificate of a run: how exactly sampler and learner agreed, by what, and where (`certificate.json`)."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch

import lockstep
from lockstep.monitor.agreement import Certificate
from lockstep.report.agreement import CERTIFICATE
from lockstep.whole_files import write_whole

_EXACT = {
    "attention": "fp32, 128 keys a product, products added in order",
    "linear": "rows in multiples of 8",
    "softmax": "2,048 columns a sum, powers of e",
}
_USUAL = {"attention": "scaled_dot_product_attention", "linear": "any number of rows", "softmax": "powers of 2"}


def write_certificate(folder: Path, step: int, certificate: Certificate) -> None:
    """Writes the certificate of a run into its folder, as of a step."""
    known = {
        "step": step,
        **asdict(certificate),
        "kernels": _EXACT if certificate.exact_kernels else _USUAL,
        "versions": {"lockstep": lockstep.__version__, "torch": torch.__version__},
        "machine": {
            "platform": platform.platform(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
    }
    write_whole(folder / CERTIFICATE, [(json.dumps(known, indent=2) + "\n").encode()])
