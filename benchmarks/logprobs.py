"""Sharded log-probabilities: CPU time and peak memory of every kernel, beside plain autograd.

    python -m benchmarks.logprobs [--peer FOLDER] [--save]

Two processes over gloo with one thread each share a vocabulary of 32,768 for 4 × 1,024 positions.
"naive" is what one writes first (`baselines/naive_logprobs.py`), on the same inputs in the same
run; the results and gradients of all sides are compared. With `--peer FOLDER`, a checkout of NeMo
RL that you fetched, its own functions are two more sides of the same run: as they are by default,
and with chunks of 256 positions.

Seconds are CPU seconds of a rank, medians of interleaved runs; memory is what a process holds above
the inputs and the upstream gradients at the peak, and has a run of its own.
"""

from __future__ import annotations

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

from benchmarks.harness import environment, parser_of, save
from benchmarks.logprobs_kernels import KERNELS, Kernel, Place
from benchmarks.logprobs_measure import Figures, measure_work

SHAPE = (4, 1024, 32_768)
"""B, S, V."""
RANKS = 2
MIB = 2**20


@dataclass(frozen=True)
class Setting:
    """The setting that all ranks share.

    Attributes:
        repeats: Repetitions of the timing; slow kernels have half as many.
        folder: Folder of the ranks' meeting, and of rank 0's results.
        peer: A checkout of NeMo RL; empty: none.
        shape: B, S, V.
    """

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
    """Measures the kernels with the other ranks; rank 0 prints progress and writes
    `figures.json`.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{setting.folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=10),
    )
    place = Place(rank, dist.group.WORLD, *setting.shape, setting.load_peer())  # pyright: ignore[reportArgumentType]
    results: dict[str, dict[str, Any]] = {}
    for kernel in KERNELS:
        figures = _measure(kernel, place, setting.repeats)
        results[kernel.name] = {way: dataclasses.asdict(figure) for way, figure in figures.items()}
        if rank == 0:
            told = ", ".join(f"{way} {figure.seconds:.3f} s" for way, figure in figures.items())
            print(f"{kernel.name}: {told}", flush=True)
    if rank == 0:
        Path(setting.folder, "figures.json").write_text(json.dumps(results))
    dist.barrier()  # a rank that leaves while another one still communicates can abort it
    dist.destroy_process_group()


def _measure(kernel: Kernel, place: Place, repeats: int) -> dict[str, Figures]:
    """A kernel's figures: seconds are means over the ranks, memory that of the rank with the
    most.
    """
    work = kernel.build(place)
    repeats = max(1, repeats // 2) if kernel.slow else repeats
    figures = measure_work(work, repeats, lambda: dist.barrier(place.group))
    for figure in figures.values():
        seconds = torch.tensor([figure.forward_s, figure.backward_s], dtype=torch.float64)
        held = torch.tensor(figure.total_bytes, dtype=torch.float64)
        dist.all_reduce(seconds, group=place.group)
        dist.all_reduce(held, dist.ReduceOp.MAX, place.group)
        figure.forward_s, figure.backward_s = (seconds / place.size).tolist()
        figure.total_bytes = float(held)
    return figures


def over_ranks(setting: Setting) -> dict[str, dict[str, Figures]]:
    """Starts the ranks and returns each kernel's figures by way."""
    start_processes(run_rank, (setting,), RANKS)
    results = json.loads(Path(setting.folder, "figures.json").read_text())
    return {
        kernel: {way: Figures(**figure) for way, figure in ways.items()}
        for kernel, ways in results.items()
    }


def show(figures: dict[str, dict[str, Figures]]) -> str:
    """A Markdown table: CPU time and memory of each side, and how many times Lockstep's the others'
    are.
    """
    sides = list(dict.fromkeys(way for ways in figures.values() for way in ways))
    lines = [f"| CPU ms; MiB at the peak | {' | '.join(sides)} |", f"|---|{'---:|' * len(sides)}"]
    for kernel, ways in figures.items():
        cells = [_cell(ways[side], ways["Lockstep"]) if side in ways else "–" for side in sides]
        lines.append(f"| {kernel} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(own: Figures, ours: Figures) -> str:
    times = f" ({own.seconds / ours.seconds:.1f}×)" if own is not ours else ""
    return f"{own.seconds * 1e3:.0f}{times}; {own.total_bytes / MIB:.0f}"


def main() -> None:
    parser = parser_of(__doc__, "logprobs")
    parser.add_argument(
        "--repeats", type=int, default=4, help="interleaved runs; slow kernels have half as many"
    )
    parser.add_argument(
        "--peer", default="", help="a checkout of NeMo RL, whose functions are measured too"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = over_ranks(Setting(args.repeats, folder, args.peer))
    print(environment(1), show(figures), sep="\n\n")
    if args.save:
        plain = {
            name: {way: dataclasses.asdict(own) for way, own in ways.items()}
            for name, ways in figures.items()
        }
        print(save("logprobs", environment(1), [], {"repeats": args.repeats, "kernels": plain}))


if __name__ == "__main__":
    main()
