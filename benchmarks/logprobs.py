"""Sharded log-probabilities: CPU time, peak memory and collectives of every kernel, beside plain autograd.

    python -m benchmarks.logprobs [--save]

Two processes over gloo with one thread each share a vocabulary of 32,768 for 4 × 1,024 positions. "naive" is what one
writes first (`baselines/naive_logprobs.py`), on the same inputs in the same run; the results and gradients of both
sides are compared. "reference" are figures of `nemo_rl.distributed.model_utils` from another day, on a CPU like this
one. One kernel, log-probability in fp32, is also run here in the reference's manner ("chunked"): what it takes here,
divided by the reference's figure, is the speed of this machine on this day, and all of the reference's CPU times are
multiplied by it before a ratio is formed.

Seconds are CPU seconds of a rank, medians of interleaved runs; memory is what a process holds above the inputs and the
upstream gradients at the peak, and has a run of its own. Then one process alone, with the head's matrix product, beside
PyTorch's own fused function.

With `--peer FOLDER`, a checkout of NeMo RL that you fetched, its own functions are two more sides of the same run:
as they are by default, and with chunks of 256 positions.

With `--device cuda` there are as many ranks as GPUs, two at most, over NCCL; seconds are the GPU's and memory is
that of PyTorch's allocator. This has not run to its end yet.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from benchmarks.harness import environment, save
from benchmarks.logprobs_head import HEAD_TOKENS, HEAD_VOCAB, HIDDEN, head
from benchmarks.logprobs_kernels import KERNELS, Kernel, Place
from benchmarks.logprobs_measure import Figures, measure_work, read
from benchmarks.logprobs_tables import (
    harness_rows,
    memory_table,
    peer_table,
    products_table,
    time_table,
)

SHAPE = (4, 1024, 32_768)
"""B, S, V."""


@dataclass(frozen=True)
class Setting:
    """The setting that all ranks share.

    Attributes:
        only: Part of the names of the kernels to measure.
        device: "cpu" or "cuda".
        ranks: Number of ranks.
        repeats: Repetitions of the timing; slow kernels have half as many.
        folder: Folder of the ranks' meeting, and of rank 0's results.
        peer: A checkout of NeMo RL; empty: none.
        shape: B, S, V.
    """

    only: str
    device: str
    ranks: int
    repeats: int
    folder: str
    peer: str = ""
    shape: tuple[int, int, int] = SHAPE

    def load_peer(self) -> ModuleType | None:
        if not self.peer:
            return None
        sys.path.append(self.peer)
        return importlib.import_module("nemo_rl.distributed.model_utils")


def run_rank(rank: int, setting: Setting) -> None:
    """Measures the kernels with the other ranks; rank 0 prints progress and writes `figures.json`."""
    torch.set_num_threads(1)
    device = torch.device(setting.device, rank) if setting.device == "cuda" else torch.device("cpu")
    dist.init_process_group(
        "nccl" if setting.device == "cuda" else "gloo",
        init_method=f"file://{setting.folder}/store",
        rank=rank,
        world_size=setting.ranks,
        timeout=timedelta(minutes=10),
    )
    place = Place(rank, dist.group.WORLD, device, *setting.shape, setting.load_peer())  # pyright: ignore[reportArgumentType]
    results: dict[str, dict[str, Any]] = {}
    for kernel in chosen(setting.only):
        figures = _measure(kernel, place, setting.repeats)
        results[kernel.name] = {way: dataclasses.asdict(figure) for way, figure in figures.items()}
        if rank == 0:
            told = ", ".join(f"{way} {figure.seconds:.3f} s" for way, figure in figures.items())
            print(f"{kernel.name}: {told}", flush=True)
    if rank == 0:
        Path(setting.folder, "figures.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def chosen(only: str) -> list[Kernel]:
    return [kernel for kernel in KERNELS if only in kernel.name]


def _measure(kernel: Kernel, place: Place, repeats: int) -> dict[str, Figures]:
    """A kernel's figures: seconds are means over the ranks, memory that of the rank with the most."""
    work = kernel.build(place)
    repeats = max(1, repeats // 2) if kernel.slow else repeats
    figures = measure_work(work, place.device, repeats, lambda: dist.barrier(place.group))
    for figure in figures.values():
        seconds = torch.tensor([figure.forward_s, figure.backward_s], dtype=torch.float64, device=place.device)
        held = torch.tensor([figure.forward_bytes, figure.total_bytes], dtype=torch.float64, device=place.device)
        dist.all_reduce(seconds, group=place.group)
        dist.all_reduce(held, dist.ReduceOp.MAX, place.group)
        figure.forward_s, figure.backward_s = (seconds / place.size).tolist()
        figure.forward_bytes, figure.total_bytes = held.tolist()
    return figures


def over_ranks(setting: Setting) -> dict[str, dict[str, Figures]]:
    """Starts the ranks and returns each kernel's figures by way."""
    start_processes(run_rank, (setting,), setting.ranks)
    results = json.loads(Path(setting.folder, "figures.json").read_text())
    return {kernel: {way: read(figure) for way, figure in ways.items()} for kernel, ways in results.items()}


def machine_speed(figures: dict[str, dict[str, Figures]]) -> float:
    """CPU time of the reference's manner here, divided by the reference's own; 1 if it was not measured."""
    reference = KERNELS[0].reference
    here = figures.get(KERNELS[0].name, {}).get("chunked")
    return 1.0 if here is None or reference is None else here.seconds / reference.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="only kernels with this in their name, and nothing on one process")
    parser.add_argument("--repeats", type=int, default=4, help="interleaved runs; slow kernels have half as many")
    parser.add_argument("--peer", default="", help="a checkout of NeMo RL, whose functions are measured too")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/logprobs.json")
    args = parser.parse_args()
    ranks = min(2, torch.cuda.device_count()) if args.device == "cuda" else 2
    with tempfile.TemporaryDirectory() as folder:
        figures = over_ranks(Setting(args.only, args.device, ranks, args.repeats, folder, args.peer))
    speed = machine_speed(figures)
    print(f"{environment(1)}\n{ranks} ranks; the reference's manner takes {speed:.2f} times its own figure here\n")
    print(f"{time_table(figures, speed)}\n\n{memory_table(figures)}\n\n{products_table(figures)}\n")
    if args.peer:
        print(f"{peer_table(figures)}\n")
    if args.only:
        return
    torch.set_num_threads(1)
    device = torch.device(args.device)
    alone = {f"one process, T={HEAD_TOKENS} V={HEAD_VOCAB} H={HIDDEN}": head(device, args.repeats)}
    print(products_table(alone), "\n")
    if args.save:
        details = {"machine_speed": speed, "kernels": _plain(figures), "one_process": _plain(alone)}
        print(save("logprobs", environment(1), harness_rows(figures | alone), {"repeats": args.repeats, **details}))


def _plain(figures: dict[str, dict[str, Figures]]) -> dict[str, Any]:
    return {kernel: {way: dataclasses.asdict(own) for way, own in ways.items()} for kernel, ways in figures.items()}


if __name__ == "__main__":
    main()
