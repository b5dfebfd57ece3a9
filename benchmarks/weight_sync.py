"""A weight sync, attestation included, beside a copy of the same bytes in memory: seconds, CPU seconds, peak memory.

    python -m benchmarks.weight_sync [--sizes 2 100 500] [--ways ...] [--repeats 7] [--save]

Models with random weights, fp32; learner, ranks and engine are processes of this machine with one thread each. A copy
and a weight sync are timed in turn. *ratio* is the rate of the weight sync in rates of the copy, by wall seconds, which
other work on the machine lengthens; *busiest* is the same by CPU seconds of the busiest process: where each has a core,
it bounds the ratio. *memory* is the growth of the largest process's peak while weights are sent.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import cpu_clock, environment, save, status_bytes
from benchmarks.small_llama import causal_lm, llama_config
from lockstep.cluster.learner_group import launch
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import LearnerSection, Parallel, SamplerSection
from lockstep.learners.base import Learner
from lockstep.weight_sync.sync import random_probe, sync_weights

VOCABULARY, CONTEXT = 32_000, 512
SHAPES = {  # millions of parameters: hidden size, layers
    2: (32, 1),
    100: (768, 7),
    500: (1280, 21),
}


@dataclass(frozen=True)
class Way:
    """An engine, how weights come to it, and the number of ranks that hold them; one: this process."""

    engine: SamplerSection
    ranks: int = 1


def _torch(transfer: str) -> SamplerSection:
    return SamplerSection.model_validate({"replicas": 1, "transfer": transfer})


def _vllm(transfer: str) -> SamplerSection:
    return SamplerSection.model_validate({"backend": "vllm", "max_batch_size": 16, "transfer": transfer})


WAYS = {
    "torch, shared memory": Way(_torch("shared_memory")),
    "torch, process group": Way(_torch("process_group")),
    "two ranks, torch, shared memory": Way(_torch("shared_memory"), 2),
    "two ranks, torch, process group": Way(_torch("process_group"), 2),
    "vLLM, shared memory": Way(_vllm("shared_memory")),
    "vLLM, process group": Way(_vllm("process_group")),
}


@dataclass(frozen=True)
class Row:
    """Figures of one way: medians of seconds, mean CPU seconds, and mebibytes."""

    name: str
    copy_s: float
    sync_s: float
    ratio: float
    copy_cpu_s: float
    cpu_s: dict[str, float]
    busiest: float
    memory_mib: dict[str, float]

    @property
    def line(self) -> str:
        cpu = ", ".join(f"{name} {seconds:.3f}" for name, seconds in self.cpu_s.items())
        memory = ", ".join(f"{name} {mib:.0f}" for name, mib in self.memory_mib.items())
        return (
            f"| {self.name} | {self.copy_s:.4f} | {self.sync_s:.4f} | {self.ratio:.2f} | {self.copy_cpu_s:.4f} | {cpu} "
            f"| {self.busiest:.2f} | {memory} |"
        )


HEAD = (
    "| way | copy s | sync s | ratio | copy CPU s | CPU s | busiest | memory MiB |\n|---|---|---|---|---|---|---|---|"
)


def processes() -> dict[str, int]:
    """This process and the workers, with their numbers."""
    found = {"driver": os.getpid()}
    return found | {str(child.name): child.pid or 0 for child in multiprocessing.active_children()}


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far of each process."""
    return {name: cpu_clock(pid) for name, pid in processes().items()}


def memory_mib(field: str) -> dict[str, float]:
    """Memory of each process, `VmRSS` or, since `forget_peaks`, the largest that it was: `VmHWM`."""
    return {name: status_bytes(field, pid) / 2**20 for name, pid in processes().items()}


def forget_peaks() -> None:
    for pid in processes().values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def model_folder(root: Path, size: int) -> Path:
    """Writes a Llama with about `size` million parameters."""
    hidden, layers = SHAPES[size]
    causal_lm(llama_config(hidden=hidden, layers=layers, vocab=VOCABULARY)).save_pretrained(root / str(size))
    return root / str(size)


def copier(learner: Learner) -> Callable[[], None]:
    """The baseline: copies every tensor to existing memory."""
    tensors = [tensor.detach().clone() for _, tensor in learner.weights()]
    copies = [tensor.clone() for tensor in tensors]

    def copy() -> None:
        for tensor, other in zip(tensors, copies, strict=True):
            other.copy_(tensor)

    return copy


@contextmanager
def open_learner(folder: Path, ranks: int) -> Iterator[Learner]:
    spec = LearnerSpec(str(folder), "logits", LearnerSection(device="cpu", parallel=Parallel(dp=ranks)), None, 0)
    if ranks == 1:
        yield spec.build()
        return
    with closing(launch(spec, 600.0)) as learner:
        yield learner


def measure_way(folder: Path, name: str, way: Way, repeats: int) -> Row:
    """Times copies and weight syncs in turn, after a first one of each that sets up memory."""
    computation, probe = LearnerSection(device="cpu"), random_probe(VOCABULARY, CONTEXT)
    with (
        open_learner(folder, way.ranks) as learner,
        closing(SamplerPool(SamplerSpec(str(folder), way.engine, computation), print)) as pool,
    ):
        pool.ready()
        copy, copies, copies_cpu, syncs = copier(learner), list[float](), list[float](), list[float]()
        spent = list[dict[str, float]]()
        copy()
        sync_weights(learner, pool, 0, probe)
        held = memory_mib("VmRSS")
        forget_peaks()
        for version in range(1, repeats + 1):
            begun, cpu = time.perf_counter(), time.process_time()
            copy()
            copies.append(time.perf_counter() - begun)
            copies_cpu.append(time.process_time() - cpu)
            before, begun = cpu_seconds(), time.perf_counter()
            sync_weights(learner, pool, version)
            syncs.append(time.perf_counter() - begun)
            spent.append({process: seconds - before[process] for process, seconds in cpu_seconds().items()})
        peaks = memory_mib("VmHWM")
    cpu_s = {process: statistics.mean(one[process] for one in spent) for process in spent[0]}
    copy_s, sync_s, copy_cpu_s = (statistics.median(one) for one in (copies, syncs, copies_cpu))
    busiest = copy_cpu_s / max(cpu_s.values())
    grown = {process: peak - held[process] for process, peak in peaks.items()}
    return Row(name, copy_s, sync_s, copy_s / sync_s, copy_cpu_s, cpu_s, busiest, grown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SHAPES), choices=SHAPES, help="million parameters")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/weight_sync.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(environment(), HEAD, sep="\n")
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as root:
        for size in args.sizes:
            folder = model_folder(Path(root), size)
            for name in args.ways:
                rows.append(measure_way(folder, f"{size} M, {name}", WAYS[name], args.repeats))
                print(rows[-1].line, flush=True)
    if args.save:
        print(save("weight_sync", environment(), rows, {"repeats": args.repeats}))


if __name__ == "__main__":
    main()
