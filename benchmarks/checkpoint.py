"""A checkpoint of policy and critic: how long training stands still, how long it takes, and how
many bytes it has.

    python -m benchmarks.checkpoint [--save]

Baseline: the same states by `torch.save` and fsync, training waiting, as most trainers do; no sums.
Ours writes safetensors from a copy while training continues, sums them, flushes them and renames
the folder. Training is learner updates on the same states; its pace while a checkpoint is written
is compared with its pace alone.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from benchmarks.harness import Row, environment, parser_of, peak_rss_mb, save, table
from benchmarks.small_llama import VOCAB, causal_lm, llama_config
from lockstep.config import LearnerSection, Optimizer
from lockstep.core.batch import Batch
from lockstep.learners.base import train
from lockstep.learners.torch.learner import TorchLearner
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.models.heads import LogitsHead
from lockstep.run.checkpoint.checkpoints import CheckpointStore
from lockstep.run.checkpoint.saver import CheckpointSaver

HIDDEN = 768
LAYERS = 8
SAVES = 5


def learner(seed: int) -> TorchLearner:
    model: LlamaForCausalLM = causal_lm(llama_config(hidden=HIDDEN, layers=LAYERS), seed)
    return TorchLearner(LogitsHead(model), LearnerSection(device="cpu"), Optimizer(lr=1e-4))


def step(learners: dict[str, TorchLearner]) -> float:
    """One update of each learner. Returns its seconds."""
    batch = Batch(
        torch.arange(512) % VOCAB, torch.full((8,), 64), {"mask": torch.ones(512, dtype=torch.bool)}
    )
    began = time.perf_counter()
    for each in learners.values():
        train(each, batch, CrossEntropyLoss())
    return time.perf_counter() - began


def waiting(learners: dict[str, TorchLearner], folder: Path) -> float:
    """Seconds that training waits for `torch.save` and fsync."""
    began = time.perf_counter()
    for name, each in learners.items():
        assert each._optimizer is not None
        moments = {name: tensor for name, tensor, _ in each._optimizer.list_moments(each.pieces)}
        state = {"model": each.model.state_dict(), "optimizer": moments}
        with (folder / f"{name}.pt").open("wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
    return time.perf_counter() - began


def saving(
    saver: CheckpointSaver, number: int, learners: dict[str, TorchLearner]
) -> tuple[float, float, list[float]]:
    """Seconds that training waited, seconds until the checkpoint had its name, and of each step
    meanwhile.
    """
    began = time.perf_counter()
    saver.begin_checkpoint(number, {"position": 0})
    still = time.perf_counter() - began
    steps = []
    while saver.begun:
        steps.append(step(learners))
        asked = time.perf_counter()
        saver.advance_checkpoint(wait=False)
        still += time.perf_counter() - asked
    return still, time.perf_counter() - began, steps


def measure(folder: Path) -> tuple[list[Row], dict[str, object]]:
    learners = {name: learner(seed) for seed, name in enumerate(("policy", "critic"))}
    alone = [step(learners) for _ in range(4)][1:]
    saver = CheckpointSaver(CheckpointStore(folder / "checkpoints", keep=1), learners)
    theirs = []
    ours = []
    for number in range(1, SAVES + 1):
        theirs.append(waiting(learners, folder))
        ours.append(saving(saver, number, learners))
    states = sum(p.numel() for each in learners.values() for p in each.model.parameters()) * 4 * 3
    written = sum(
        path.stat().st_size for path in (folder / "checkpoints").rglob("*") if path.is_file()
    )
    still, whole = ([entry[i] for entry in ours] for i in (0, 1))
    pace = statistics.median([second for _, _, steps in ours for second in steps])
    rows = [
        Row(name, base, mine, base / mine)
        for name, base, mine in (
            ("training stands still, s, first checkpoint", theirs[0], still[0]),
            (
                "training stands still, s, later ones",
                statistics.median(theirs[1:]),
                statistics.median(still[1:]),
            ),
            (
                "until it is whole on the disk, s",
                statistics.median(theirs),
                statistics.median(whole),
            ),
            ("a training step, s: alone, and while one is written", statistics.median(alone), pace),
            ("bytes: of the states, and of the checkpoint, MB", states / 1e6, written / 1e6),
        )
    ]
    return rows, {
        "peak_rss_mb": peak_rss_mb(),
        "states_mb": states / 1e6,
        "still_s": still,
        "whole_s": whole,
    }


def main() -> None:
    parser = parser_of(__doc__, "checkpoint")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="lockstep-checkpoint-"))
    try:
        rows, details = measure(folder)
    finally:
        shutil.rmtree(folder)
    where = environment()
    print(
        where,
        table(rows, "torch.save, waiting", "policy and critic with AdamW"),
        details,
        sep="\n\n",
    )
    if options.save:
        print(save("checkpoint", where, rows, details))


if __name__ == "__main__":
    main()
