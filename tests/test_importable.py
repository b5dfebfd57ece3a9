"""Every benchmark and example can be imported, and every proof collected, so that none rots between its runs."""

from __future__ import annotations

import re
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
        if error.name not in ("trl", "verl", "nemo_rl", "tensordict", "verifiers"):  # users install them by hand
            raise
"""


def modules() -> list[str]:
    """Those of benchmarks and examples."""
    paths = [path for folder in ("benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name for name in names if name not in SCRIPTS]


def test_every_benchmark_and_example_can_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT, *modules()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def files_of_proofs() -> list[str]:
    """Files that mark a test as a proof, or import a fixture that does: to collect all others takes half a minute."""
    makers = [path.stem for path in (TESTS / "fixtures").glob("*.py") if "mark.proof" in path.read_text()]
    signs = re.compile(rf"mark\.proof|^from ({'|'.join(makers)}) import", re.MULTILINE)
    return [str(path) for path in sorted(TESTS.rglob("test_*.py")) if signs.search(path.read_text())]


def test_every_proof_can_be_collected() -> None:
    options = ["-q", "--collect-only", "-m", "proof", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *files_of_proofs(), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "test" in done.stdout
