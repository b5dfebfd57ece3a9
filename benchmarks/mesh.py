"""A training step of one learner over several processes beside the same on one: CPU time, elapsed time, peak memory.

    python -m benchmarks.mesh [--save] [--hidden 512] [--layers 6] [--steps 5]

A Llama with random weights, fp32, one thread a process, learns a batch of uneven sequences. CPU seconds are those of
all ranks; they grow by what ranks do twice, and by gloo, which copies through sockets with the processor's own hands.
Peak memory is the largest rank's, of which some 400 MB are programs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import Row, environment, save, table
from lockstep.batch import Batch
from lockstep.learners.base import train
from lockstep.losses.cross_entropy import CrossEntropy
from lockstep.recipe import LearnerSection, Optimizer, Parallel
from lockstep.runtime.parallel import launch
from lockstep.runtime.workers import LearnerSpec

VOCABULARY, CONTEXT, TOKENS = 8192, 1024, 4096
LAYOUTS = {
    "one process": {},
    "dp 2": {"dp": 2},
    "tp 2": {"tp": 2},
    "cp 2": {"cp": 2},
    "dp 2, checkpointed": {"dp": 2},
}


@dataclass(frozen=True)
class Step:
    """What a step takes: elapsed seconds, CPU seconds of all ranks, and the largest rank's peak memory in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def model_folder(root: Path, hidden: int, layers: int) -> Path:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=CONTEXT,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(root / "model")
    return root / "model"


def batch() -> Batch:
    lengths = torch.tensor([1024, 896, 640, 512, 384, 256, 192, 128, 64])
    total = int(lengths.sum())
    return Batch(torch.arange(total) % VOCABULARY, lengths, {"mask": torch.ones(total, dtype=torch.bool)})


def step(folder: Path, layout: str, steps: int) -> Step:
    """The median step of a layout, after a first one."""
    section = LearnerSection(
        device="cpu",
        parallel=Parallel(**LAYOUTS[layout]),
        micro_batch_tokens=TOKENS // 4,
        activation_checkpointing="checkpointed" in layout,
    )
    known = {child.pid for child in psutil.Process().children(recursive=True)}
    learner = launch(LearnerSpec(str(folder), "logits", section, Optimizer(lr=1e-5), 0), timeout_s=600.0)
    ranks = [child for child in psutil.Process().children(recursive=True) if child.pid not in known]
    wall, cpu = [], []
    try:
        for _ in range(steps + 1):
            began, used = time.perf_counter(), cpu_seconds(ranks)
            train(learner, batch(), CrossEntropy())
            wall.append(time.perf_counter() - began)
            cpu.append(cpu_seconds(ranks) - used)
        peak = max(peak_mb(rank.pid) for rank in ranks)
    finally:
        learner.close()
    return Step(statistics.median(wall[1:]), statistics.median(cpu[1:]), peak)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/mesh.json")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        folder = model_folder(Path(root), args.hidden, args.layers)
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        steps = {layout: step(folder, layout, args.steps) for layout in LAYOUTS}
    one, rows = steps["one process"], []
    for layout, its in list(steps.items())[1:]:
        rows.append(Row(f"{layout}: elapsed s", one.wall_s, its.wall_s, one.wall_s / its.wall_s))
        rows.append(Row(f"{layout}: CPU s of all", one.cpu_s, its.cpu_s, one.cpu_s / its.cpu_s))
        rows.append(Row(f"{layout}: peak MB of a rank", one.peak_mb, its.peak_mb, one.peak_mb / its.peak_mb))
    where = environment(threads=1)
    print(where)
    print(f"{weights / 1e6:.0f} MB of weights, a step of {int(batch().lengths.sum())} tokens")
    print(table(rows, "one process", "a step"))
    if args.save:
        print(save("mesh", where, rows, {"weights_bytes": weights, "arguments": vars(args)}))


if __name__ == "__main__":
    main()
