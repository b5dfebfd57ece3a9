"""Where Triton's kernels can be tested here: on a GPU, or through Triton's interpreter on CPU tensors.

Importing it skips a file of tests where neither can be.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

pytest.importorskip("triton", reason="Triton has a folder of its own: `make kernels`")
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("Triton's kernels run on a GPU, or with TRITON_INTERPRET=1", allow_module_level=True)

DEVICE = "cpu" if INTERPRETED else "cuda"
MARKS = [pytest.mark.needs("triton") if INTERPRETED else pytest.mark.gpu]
HALF = torch.float16 if INTERPRETED else torch.bfloat16
"""A narrow type for matrix products: Triton's interpreter cannot multiply bf16."""

BF16 = 2.0**-7 if INTERPRETED else 2.0**-8
"""Largest relative error of a number that is written as bf16: a GPU rounds it, Triton's interpreter cuts it."""
