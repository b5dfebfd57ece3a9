"""Runs the tests of this folder as a stranger's training stack would import the package: torch
alone, as old as 2.9.

    python tests/logprobs/alone.py

The environment has torch, numpy and pytest; `lockstep` cannot be imported. `make logprobs-alone`
makes it. What is compiled is tested with torch as it is, since its compiler lists torch's own
names, and all else without later names.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILED = HERE / "test_compiled_graphs.py"
FOREIGN = ("lockstep", "transformers", "safetensors", "pydantic", "yaml")
TORCHES = {"old": "import older_torch\nolder_torch.hide_newer_names()\n", "new": ""}


class Fixtures:
    """What tests/conftest.py, which imports `lockstep`, gives these tests elsewhere."""

    @pytest.fixture(scope="module")
    @classmethod
    def ranks(cls) -> Iterator[object]:
        from ranks import Ranks

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["as_asked"])
        pool = Ranks(context)
        yield pool
        pool.close()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "proof: takes minutes; not run here")
        from hypothesis import settings

        settings.register_profile("alone", deadline=None, derandomize=True)
        settings.load_profile("alone")


def run(torch_is: str, arguments: list[str]) -> int:
    """Runs pytest where the package, and nothing else of the project, can be imported."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lockstep_logprobs").symlink_to(HERE.parent.parent / "lockstep_logprobs")
        Path(folder, "as_asked.py").write_text(TORCHES[torch_is])
        Path(folder, "pytest.ini").write_text("[pytest]\nfilterwarnings =\n    error\n")
        sys.path[:0] = [folder, str(HERE), str(HERE.parent / "fixtures")]
        importlib.import_module("as_asked")
        found = [name for name in FOREIGN if importlib.util.find_spec(name) is not None]
        if found:
            print(
                f"{', '.join(found)} can be imported here; run this in an environment of torch, "
                "numpy and pytest"
            )
            return 2
        options = ["-q", "-m", "not proof", "-p", "no:cacheprovider", "-c", f"{folder}/pytest.ini"]
        return pytest.main([*options, f"--confcutdir={HERE}", *arguments], plugins=[Fixtures()])


def main() -> int:
    parts = {"old": [str(HERE), f"--ignore={COMPILED}"], "new": [str(COMPILED)]}
    return max(
        subprocess.call([sys.executable, __file__, name, *arguments])
        for name, arguments in parts.items()
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]) if sys.argv[1:] else main())
