"""Programs that the mission runs: each on one thread, with a log file, and a few at a time."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


class MissionError(Exception):
    """A program ended with an exit code that the mission does not expect."""


@dataclass(frozen=True)
class Program:
    """A Python module with arguments.

    Attributes:
        name: Name of its log file.
        arguments: Module and arguments, as after `python -m`.
        codes: Exit codes with which it may end.
    """

    name: str
    arguments: tuple[str, ...]
    codes: tuple[int, ...] = (0,)

    def finish(self, folder: Path) -> float:
        """Runs it in a folder, unless it has ended there before, with the same recipes.

        Returns its seconds of then.

        The seconds of calls that were stopped count.
        """
        note = folder / f"{self.name}.ended.json"
        spent = json.loads(note.read_text()) if note.exists() else {}
        if spent.get("program") != self._digest():
            spent = {"program": self._digest(), "seconds": 0.0, "ended": False}
        if spent["ended"]:
            return spent["seconds"]
        start = time.monotonic()
        try:
            self.run(folder)
            spent["ended"] = True
        finally:
            spent["seconds"] += time.monotonic() - start
            note.write_text(json.dumps(spent) + "\n")
        return spent["seconds"]

    def _digest(self) -> str:
        """Digest of the arguments and of all recipes of the mission: a result of others is not
        taken.
        """
        whole = hashlib.sha256(json.dumps(self.arguments).encode())
        for file in sorted(Path(__file__).parent.glob("*.yaml")):
            whole.update(file.read_bytes())
        return whole.hexdigest()

    def run(self, folder: Path) -> None:
        """Runs it in a folder.

        Raises:
            MissionError: If it ends with another code.
        """
        code = self.start(folder).wait()
        if code not in self.codes:
            log = self._log(folder)
            end = log.read_text()[-2000:]
            raise MissionError(f"{' '.join(self.arguments)} ended with code {code}; {log}:\n{end}")

    def start(self, folder: Path) -> subprocess.Popen[bytes]:
        """Starts it in a folder, and leaves waiting for its end to the caller."""
        alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        with self._log(folder).open("a") as stream:
            command = [sys.executable, "-m", *self.arguments]
            return subprocess.Popen(
                command, cwd=folder, env=os.environ | alone, stdout=stream, stderr=stream
            )

    def _log(self, folder: Path) -> Path:
        return folder / f"{self.name}.log"


def run_all(programs: Sequence[Program], folder: Path, jobs: int) -> dict[str, float]:
    """Runs the programs that have not ended in this folder, so many at a time.

    Returns the seconds of each by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        seconds = pool.map(lambda program: program.finish(folder), programs)
        return {program.name: taken for program, taken in zip(programs, seconds, strict=True)}
