"""Where `make` takes torch from: its builds for CPUs where there is no NVIDIA GPU and their index
answers, or PyPI.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from local_server import serve

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has one build of torch")


@pytest.fixture
def index() -> Iterator[str]:
    """An index that answers."""
    with serve(SimpleHTTPRequestHandler) as address:
        yield address


def extra_index(folder: Path, *words: str, gpu: bool = False) -> str | None:
    """The index that `make` would add, in a shell that finds `nvidia-smi` or not."""
    (folder / "nvidia-smi").write_text("#!/bin/sh\n")
    (folder / "nvidia-smi").chmod(0o755 if gpu else 0o644)
    here = {name: value for name, value in os.environ.items() if name != "TORCH_INDEX"}
    command = [
        "make",
        "-n",
        "quickstart",
        f"VENV={folder}/none",
        f"PYTHON={sys.executable}",
        *words,
    ]
    environment = here | {"PATH": f"{folder}:/usr/bin:/bin"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert "-e ." in run.stdout
    found = re.search(r"--extra-index-url (\S+)", run.stdout)
    return None if found is None else found[1]


def test_make_uses_cpu_torch_index_only_if_reachable_and_without_gpu(
    index: str, tmp_path: Path
) -> None:
    assert extra_index(tmp_path, f"CPU_INDEX={index}") == index
    assert extra_index(tmp_path, f"CPU_INDEX={index}", gpu=True) is None
    assert extra_index(tmp_path, "CPU_INDEX=http://127.0.0.1:9") is None
