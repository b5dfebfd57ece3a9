"""Verdicts on this machine's products, kept in the user's cache folder, so that each product is tried once.

A verdict is keyed by all that decides it: product, threads, torch, processor, environment and the code that tries it. A
file that cannot be read, or is about anything else, is ignored; one that cannot be written is not an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from lockstep.cache_folder import find_cache_folder
from lockstep.data.cache import entry
from lockstep.whole_files import write_changed
from lockstep_logprobs import hidden, softmax

_PROCESSOR = (
    "vendor_id", "cpu family", "model", "stepping", "cache size", "flags",
    "CPU implementer", "CPU part", "CPU variant", "CPU revision", "Features",
)  # fmt: skip
"""Fields of /proc/cpuinfo, of x86 and of Arm, by which libraries choose kernels."""

_ENVIRONMENT = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "LD_PRELOAD", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "TORCH_")
"""Prefixes of environment variables by which users choose kernels."""


def recall(product: str, find: Callable[[], bool]) -> bool:
    """The verdict on a product; found now where it is not known yet."""
    about = {"product": product, "torch_version": torch.__version__, "code": _hash_code(), **_describe_machine()}
    path = find_cache_folder() / entry("exact", json.dumps(about))
    known = _read(path)
    verdict = known.pop("exact", None)
    if known == about and isinstance(verdict, bool):
        return verdict
    verdict = find()
    with suppress(OSError):
        write_changed(path, json.dumps({**about, "exact": verdict}).encode())
    return verdict


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _describe_machine() -> dict[str, str]:
    """Describes all besides the product that decides which kernels compute it, and in how many parts."""
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    return {
        "processor": _hash(_read_processor()),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "libraries": _hash(torch.__config__.show()),
        "threads": _hash(torch.__config__.parallel_info()),
        "precision": f"{torch.get_float32_matmul_precision()}, oneDNN {torch.backends.mkldnn.enabled}",
        "environment": _hash(repr(environment)),
    }


@cache
def _read_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].split(":")[0].strip() in _PROCESSOR}))


@cache
def _hash_code() -> str:
    """A hash of the code that a verdict is about."""
    files = [*sorted(Path(__file__).parent.rglob("*.py")), Path(softmax.__file__), Path(hidden.__file__)]
    return _hash("\n".join(file.read_text(encoding="utf-8") for file in files))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
