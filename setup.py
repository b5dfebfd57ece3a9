"""Adds to the wheel what editors and type checkers read of `lockstep.PPO(...)`; all else is in
pyproject.toml.

An editable install gets it in the checkout, where git does not see it.
"""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithTypes(build_py):
    """Copies the packages, and makes the types of options next to them."""

    def run(self) -> None:
        """Builds."""
        super().run()
        folder = ROOT if self.editable_mode else Path(self.build_lib)
        types = folder / "lockstep/api/options.pyi"  # and algorithms.pyi next to it
        subprocess.run(
            [sys.executable, str(ROOT / ".ci/face.py"), str(types.resolve())], check=True
        )


setup(cmdclass={"build_py": BuildWithTypes})
