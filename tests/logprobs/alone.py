"""Runs the tests of this folder as a stranger's training stack would import the package: torch alone, as old as 2.9.

    python tests/logprobs/alone.py [pytest's arguments]

The environment has torch, numpy and pytest; `lockstep` cannot be imported. `make logprobs-alone` makes it.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOREIGN = ("lockstep", "transformers", "safetensors", "pydantic", "yaml")


class Fixtures:
    """What tests/conftest.py, which imports `lockstep`, gives these tests elsewhere."""

    @pytest.fixture(scope="module")
    @classmethod
    def ranks(cls) -> Iterator[object]:
        from ranks import Ranks

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["as_old"])
        pool = Ranks(context)
        yield pool
        pool.close()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "proof: takes minutes; not run here")
        from hypothesis import settings

        settings.register_profile("alone", deadline=None, derandomize=True)
        settings.load_profile("alone")


def run(arguments: list[str]) -> int:
    """Runs pytest where the package, and nothing else of the project, can be imported."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lockstep_logprobs").symlink_to(HERE.parent.parent / "lockstep_logprobs")
        Path(folder, "as_old.py").write_text("import older_torch\nolder_torch.hide_newer_names()\n")
        Path(folder, "pytest.ini").write_text("[pytest]\nfilterwarnings =\n    error\n")
        sys.path[:0] = [folder, str(HERE), str(HERE.parent)]
        importlib.import_module("as_old")
        found = [name for name in FOREIGN if importlib.util.find_spec(name) is not None]
        if found:
            print(f"{', '.join(found)} can be imported here; run this in an environment of torch, numpy and pytest")
            return 2
        options = ["-q", "-m", "not proof", "-p", "no:cacheprovider", "-c", f"{folder}/pytest.ini"]
        return pytest.main([*options, f"--confcutdir={HERE}", *(arguments or [str(HERE)])], plugins=[Fixtures()])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
