"""A training step of one learner over several processes beside the same on one: CPU time, elapsed time, peak memory.

    python -m benchmarks.mesh [--save] [--hidden 256] [--layers 4] [--steps 3]

A Llama with random weights, fp32, one thread a process, learns a batch of uneven sequences; all layouts take their
steps in turn. CPU seconds are those of all ranks and of the driver; they grow by what ranks do twice, and by gloo,
which copies through sockets with the processor's own hands. Peak memory is the largest rank's, of which some 400 MB
are programs.

Weak scaling is two ranks with twice the rows, by CPU seconds per token. Orchestration is what the driver does: packing,
sending, waiting for answers and merging them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import Row, environment, save, table
from lockstep.batch import Batch
from lockstep.cluster.learner_group import MeshLearner, launch
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection, Optimizer, Parallel
from lockstep.learners.base import train
from lockstep.losses.cross_entropy import CrossEntropyLoss

VOCABULARY, CONTEXT, TOKENS = 8192, 1024, 4096
ONE, WEAK = "one process", "dp 2, twice the rows"
LAYOUTS = {
    ONE: {},
    "dp 2": {"dp": 2},
    "2 copies": {"dp_replicate": 2},
    "tp 2": {"tp": 2},
    "cp 2": {"cp": 2},
    "dp 2, checkpointed": {"dp": 2},
    WEAK: {"dp": 2},
    "megatron": {},
    "megatron, tp 2": {"tp": 2},
    "megatron, pp 2": {"pp": 2},
}


@dataclass(frozen=True)
class Layout:
    """A learner, and the cost of each of its steps.

    Attributes:
        learner: A learner of one rank or several.
        ranks: Their processes.
        batch: The batch of a step.
        wall_s: Elapsed seconds.
        cpu_s: CPU seconds of all ranks.
        driver_s: CPU seconds of this process.
    """

    learner: MeshLearner
    ranks: Sequence[psutil.Process]
    batch: Batch
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    driver_s: list[float] = field(default_factory=list)

    def step(self) -> None:
        began, own, used = time.perf_counter(), time.process_time(), cpu_seconds(self.ranks)
        train(self.learner, self.batch, CrossEntropyLoss())
        self.wall_s.append(time.perf_counter() - began)
        self.driver_s.append(time.process_time() - own)
        self.cpu_s.append(cpu_seconds(self.ranks) - used)

    def measured(self) -> Step:
        """The median step, after a first one."""
        wall, cpu, driver = (statistics.median(seen[1:]) for seen in (self.wall_s, self.cpu_s, self.driver_s))
        tokens = int(self.batch.lengths.sum())
        return Step(wall, cpu + driver, driver, (cpu + driver) / tokens, max(map(peak_mb, self.ranks)))


@dataclass(frozen=True)
class Step:
    """The cost of a step: elapsed seconds, CPU seconds of all, of the driver alone, and of all per token, and the peak
    memory of the largest rank in MB."""

    wall_s: float
    cpu_s: float
    driver_s: float
    token_s: float
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


def batch(copies: int) -> Batch:
    lengths = torch.tensor([1024, 896, 640, 512, 384, 256, 192, 128, 64]).repeat(copies)
    total = int(lengths.sum())
    return Batch(torch.arange(total) % VOCABULARY, lengths, {"mask": torch.ones(total, dtype=torch.bool)})


def launched(folder: Path, name: str) -> Layout:
    section = LearnerSection(
        backend="megatron" if name.startswith("megatron") else "torch",
        device="cpu",
        parallel=Parallel(**LAYOUTS[name]),
        micro_batch_tokens=TOKENS // 4,
        activation_checkpointing="checkpointed" in name,
    )
    others = set(multiprocessing.active_children())
    learner = launch(LearnerSpec(str(folder), "logits", section, Optimizer(lr=1e-5), 0), timeout_s=600.0)
    ranks = [psutil.Process(child.pid) for child in multiprocessing.active_children() if child not in others]
    return Layout(learner, ranks, batch(2 if name == WEAK else 1))


def measured(folder: Path, steps: int) -> dict[str, Step]:
    """Median steps of every layout, run in turn in each round, so that other load on the machine meets all alike."""
    with ExitStack() as stack:
        layouts: dict[str, Layout] = {}
        for name in LAYOUTS:
            layouts[name] = launched(folder, name)
            stack.callback(layouts[name].learner.close)
        for _ in range(steps + 1):
            for layout in layouts.values():
                layout.step()
        return {name: layout.measured() for name, layout in layouts.items()}


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def peak_mb(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def compared(steps: dict[str, Step]) -> list[Row]:
    one, rows = steps[ONE], []
    for layout, its in steps.items():
        rows.append(Row(f"{layout}: elapsed s", one.wall_s, its.wall_s, one.wall_s / its.wall_s))
        rows.append(Row(f"{layout}: CPU s of all", one.cpu_s, its.cpu_s, one.cpu_s / its.cpu_s))
        rows.append(Row(f"{layout}: CPU ms a token", 1e3 * one.token_s, 1e3 * its.token_s, one.token_s / its.token_s))
        rows.append(Row(f"{layout}: peak MB of a rank", one.peak_mb, its.peak_mb, one.peak_mb / its.peak_mb))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/mesh.json")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        folder = model_folder(Path(root), args.hidden, args.layers)
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        steps = measured(folder, args.steps)
    rows, shares = compared(steps), {name: its.driver_s / its.cpu_s for name, its in steps.items()}
    where = environment(threads=1)
    print(where)
    print(f"{weights / 1e6:.0f} MB of weights, a step of {int(batch(1).lengths.sum())} tokens")
    print(table(rows, ONE, "a step"))
    print("of a step's CPU time orchestration takes: " + "; ".join(f"{k} {share:.2%}" for k, share in shares.items()))
    if args.save:
        print(save("mesh", where, rows, {"weights_bytes": weights, "orchestration": shares, "arguments": vars(args)}))


if __name__ == "__main__":
    main()
