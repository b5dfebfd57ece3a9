"""Lockstep's side of `benchmarks.ladder.beside_trl`: `lockstep train`, with a clock, and its checkpoints exported.

    python -m benchmarks.ladder.beside_trl.ours FOLDER RECIPE key=value …

A step is all that the command does in one: the agreement of sampler and learner, the log, and a checkpoint where one is
due. The clock ends before the checkpoints become Hugging Face folders, for the other side writes nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.ladder.beside_trl.clock import StepClock
from lockstep.config.loading import load
from lockstep.run.callbacks import Callbacks
from lockstep.run.export import export
from lockstep.run.train import train


def main() -> None:
    folder, recipe, *options = sys.argv[1:]
    out, clock = Path(folder), StepClock()
    loaded = load(recipe, [*options, f"run.folder={out / 'run'}"])
    train(loaded, callbacks=Callbacks(on_step=lambda step, values: clock.tick()))
    every = loaded.training.run.save_every
    for step in range(every, loaded.training.run.max_steps + 1, every):
        export(out / "run", out / str(step), str(step))
    clock.write(out, f"lockstep, torch {torch.__version__}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
