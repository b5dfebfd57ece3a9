"""A weight sync, attestation included, beside a copy of the same bytes in memory: seconds and CPU
seconds.

    python -m benchmarks.weight_sync [--save]

Models with random weights, fp32; learner, ranks and engine are processes of this machine with one
thread each. A copy and a weight sync are timed in turn. *ratio* is the rate of the weight sync in
rates of the copy, by wall seconds, which other work on the machine lengthens; *busiest* is the same
by CPU seconds of the busiest process: where each has a core, it bounds the ratio.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import cpu_clock, environment, parser_of, save
from benchmarks.small_llama import causal_lm, llama_config
from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import LearnerSection, Parallel, SamplerSection
from lockstep.learners.base import Learner
from lockstep.weight_sync.sync import random_probe, sync_weights

VOCABULARY = 32_000
CONTEXT = 512
REPEATS = 7
SHAPES = {  # millions of parameters: hidden size, layers
    2: (32, 1),
    100: (768, 7),
    500: (1280, 21),
}


@dataclass(frozen=True)
class Way:
    """An engine, how weights come to it, and the number of ranks that hold them; one: this
    process.
    """

    engine: SamplerSection
    ranks: int = 1


def _torch(transfer: str) -> SamplerSection:
    return SamplerSection.model_validate({"replicas": 1, "transfer": transfer})


def _vllm(transfer: str) -> SamplerSection:
    return SamplerSection.model_validate(
        {"backend": "vllm", "max_batch_size": 16, "transfer": transfer}
    )


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
    """Figures of one way: medians of seconds, and mean CPU seconds."""

    name: str
    copy_s: float
    sync_s: float
    ratio: float
    copy_cpu_s: float
    cpu_s: dict[str, float]
    busiest: float

    @property
    def line(self) -> str:
        cpu = ", ".join(f"{name} {seconds:.3f}" for name, seconds in self.cpu_s.items())
        return (
            f"| {self.name} | {self.copy_s:.4f} | {self.sync_s:.4f} | {self.ratio:.2f} | "
            f"{self.copy_cpu_s:.4f} | {cpu} | {self.busiest:.2f} |"
        )


HEAD = (
    "| way | copy s | sync s | ratio | copy CPU s | CPU s | busiest "
    "|\n|---|---|---|---|---|---|---|"
)


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far of this process and of each worker."""
    workers = {
        str(child.name): cpu_clock(child.pid or 0) for child in multiprocessing.active_children()
    }
    return {"driver": time.process_time(), **workers}


def model_folder(root: Path, size: int) -> Path:
    """Writes a Llama with about `size` million parameters."""
    hidden, layers = SHAPES[size]
    causal_lm(llama_config(hidden=hidden, layers=layers, vocab=VOCABULARY)).save_pretrained(
        root / str(size)
    )
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
    spec = LearnerSpec(
        str(folder), "logits", LearnerSection(device="cpu", parallel=Parallel(dp=ranks)), None, 0
    )
    if ranks == 1:
        yield spec.build()
        return
    with closing(launch_learner(spec, 600.0)) as learner:
        yield learner


def measure_way(folder: Path, name: str, way: Way) -> Row:
    """Times copies and weight syncs in turn, after a first one of each that sets up memory."""
    computation = LearnerSection(device="cpu")
    probe = random_probe(VOCABULARY, CONTEXT)
    with (
        open_learner(folder, way.ranks) as learner,
        closing(SamplerPool(SamplerSpec(str(folder), way.engine, computation))) as pool,
    ):
        pool.wait_until_ready()
        copy = copier(learner)
        copies = list[float]()
        copies_cpu = list[float]()
        syncs = list[float]()
        spent = list[dict[str, float]]()
        copy()
        sync_weights(learner, pool, 0, probe)
        for version in range(1, REPEATS + 1):
            begun = time.perf_counter()
            cpu = time.process_time()
            copy()
            copies.append(time.perf_counter() - begun)
            copies_cpu.append(time.process_time() - cpu)
            before = cpu_seconds()
            begun = time.perf_counter()
            sync_weights(learner, pool, version)
            syncs.append(time.perf_counter() - begun)
            spent.append(
                {process: seconds - before[process] for process, seconds in cpu_seconds().items()}
            )
    cpu_s = {process: statistics.mean(one[process] for one in spent) for process in spent[0]}
    copy_s, sync_s, copy_cpu_s = (statistics.median(one) for one in (copies, syncs, copies_cpu))
    busiest = copy_cpu_s / max(cpu_s.values())
    return Row(name, copy_s, sync_s, copy_s / sync_s, copy_cpu_s, cpu_s, busiest)


def main() -> None:
    parser = parser_of(__doc__, "weight_sync")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(environment(), HEAD, sep="\n")
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as root:
        for size in SHAPES:
            folder = model_folder(Path(root), size)
            for name, way in WAYS.items():
                rows.append(measure_way(folder, f"{size} M, {name}", way))
                print(rows[-1].line, flush=True)
    if args.save:
        print(save("weight_sync", environment(), rows, {"repeats": REPEATS}))


if __name__ == "__main__":
    main()
