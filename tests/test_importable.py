"""Every benchmark and example can be imported, so that none rots between its runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SCRIPTS = {"examples.rl_loop": "shown in the README as it stands; tests/api/test_loop.py runs it"}
"""Programs that begin when they are read → where they are tested."""
IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("trl", "verl", "nemo_rl", "tensordict"):  # users install them by hand
            raise
"""


def modules() -> list[str]:
    """Those of benchmarks and examples."""
    paths = [
        path
        for folder in ("benchmarks", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name for name in names if name not in SCRIPTS]


def test_every_benchmark_and_example_can_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *modules()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
