"""Triton's kernels compile for GPUs: its interpreter takes programs that its compiler refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fused_device import MARKS

pytestmark = MARKS
HERE = Path(__file__).parent


@pytest.mark.parametrize("capability", [80, 90])
def test_triton_logprob_kernels_compile_for_sm80_and_sm90(capability: int, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(HERE / "compile_fused.py"), str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
