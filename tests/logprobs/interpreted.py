"""Runs the tests of Triton's kernels through its interpreter, on CPU tensors.

    python tests/logprobs/interpreted.py

Torch, numpy, pytest, hypothesis and triton can be imported, the last of which must not be beside
vLLM for CPUs; `make kernels` sees to it. What `lockstep` needs cannot be, so tests/conftest.py is
not read.
"""

from __future__ import annotations

import os

os.environ |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
# The interpreter multiplies by numpy, whose OpenBLAS sums a row by its place in a tile on
# processors with AVX2 alone.
os.environ["OPENBLAS_CORETYPE"] = "Sandybridge"

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RESULTS = "build/tests_kernels.xml"


class Marks:
    """What tests/conftest.py says of marks, and the option of a plugin that is not installed
    here.
    """

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        parser.addini("timeout", "of pytest-timeout")

    def pytest_configure(self, config: pytest.Config) -> None:
        from hypothesis import settings

        config.addinivalue_line("markers", "needs(name): the capability a test proves")
        settings.register_profile("interpreted", deadline=None, derandomize="CI" in os.environ)
        settings.load_profile("interpreted")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.user_properties += [("needs", mark.args[0]) for mark in item.iter_markers("needs")]


def main(arguments: list[str]) -> int:
    root = HERE.parent.parent
    sys.path[:0] = [str(root), str(HERE.parent / "fixtures")]
    named = any(not argument.startswith("-") for argument in arguments)
    tests = [] if named else [str(file) for file in sorted(HERE.glob("test_fused_*.py"))]
    options = ["-q", f"--confcutdir={HERE}", f"--rootdir={root}", f"--junitxml={RESULTS}"]
    return pytest.main([*options, *arguments, *tests], plugins=[Marks()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
