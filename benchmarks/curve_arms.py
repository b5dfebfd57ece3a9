"""The runs of `benchmarks.published_curve`: their options, folders and commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Literal

Backend = Literal["dtensor", "megatron"]

RECIPES: dict[Backend, str] = {
    "dtensor": "ppo_qwen2.5_1.5b_gsm8k_1n8g_dtensor",
    "megatron": "ppo_qwen2.5_1.5b_gsm8k_1n8g_megatron",
}
OURS = ("seed", "run.folder", "model.path", "data.train", "data.validation")
"""Options that the kit sets for each run, so overrides cannot."""

TRAIN, TEST = "train.jsonl", "test.jsonl"

LATE = "values are read one token late"
"""Line printed by a process that computes values without the right shift."""


@dataclass(frozen=True)
class Arm:
    """One run: its training backend, the right shift of values on or off, and the seed."""

    backend: Backend
    shift: bool
    seed: int

    @property
    def name(self) -> str:
        return f"{self.backend}-{'shift' if self.shift else 'no_shift'}-seed{self.seed}"

    @property
    def module(self) -> str:
        """The module to run, in place of the command `lockstep`."""
        return "lockstep" if self.shift else "benchmarks.unshifted"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run: its exit code, and its seconds."""

    exit_code: int
    wall_s: float


@dataclass(frozen=True)
class Kit:
    """The common options and folders of all runs.

    Attributes:
        model: Folder of the first model.
        data: Folder with `train.jsonl` and `test.jsonl`.
        out: Folder of all outputs.
        overrides: Overrides of the recipes.
    """

    model: Path
    data: Path
    out: Path
    overrides: tuple[str, ...] = ()

    def folder(self, arm: Arm) -> Path:
        """Folder of a run."""
        return self.out / "runs" / arm.name

    def log(self, arm: Arm) -> Path:
        """File of all that a run has printed, in all attempts."""
        return self.out / "logs" / f"{arm.name}.log"

    def finished(self, arm: Arm) -> bool:
        """True if a run has finished."""
        return (self.folder(arm) / "final").exists()

    def train(self, arm: Arm, *options: str) -> list[str]:
        """The command that begins a run or resumes it."""
        rows = (f"data.train={self.data / TRAIN}", f"data.validation={self.data / TEST}")
        own = (f"model.path={self.model}", *rows, f"seed={arm.seed}", f"run.folder={self.folder(arm)}")
        return [sys.executable, "-m", arm.module, "train", RECIPES[arm.backend], *own, *self.overrides, *options]

    def attempts(self, arm: Arm) -> list[Attempt]:
        """Finished attempts, in order."""
        file = self._attempts_file(arm)
        return [Attempt(**one) for one in json.loads(file.read_text())] if file.exists() else []

    def note(self, arm: Arm, attempt: Attempt) -> None:
        """Adds an attempt."""
        attempts = [asdict(one) for one in (*self.attempts(arm), attempt)]
        self._attempts_file(arm).write_text(json.dumps(attempts) + "\n")

    def _attempts_file(self, arm: Arm) -> Path:
        return self.out / "logs" / f"{arm.name}.attempts.json"


def arms_of(seeds: Sequence[int]) -> list[Arm]:
    """All runs, ordered so that the first ones already make a comparison."""
    return [Arm(backend, shift, seed) for seed, backend, shift in product(seeds, RECIPES, (True, False))]
