"""Opening a large JSONL file and reading single rows of it, beside `datasets` and beside a loop of `json.loads`.

    python -m benchmarks.index [--gigabytes 1] [--save]

Rows of the shape of GSM8K's, made up, in a temporary folder that is removed. Every opening is a process of its own:
"first" with an empty cache, "second" with what the first one left. The file is in the system's page cache for all of
them. Imports are not counted in seconds; memory is what the process grew by, at its peak, after its imports.

`datasets` converts the file into a table of typed columns, which it maps into memory; the loop holds all rows as Python
objects and has nothing to open a second time. `datasets` needs `pip install 'lockstep-rl[datasets]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, environment, save, table

NUM_READS = 20_000
ROWS_AT_ONCE = 64
"""One batch of prompts; `datasets` is asked for batches, too, which is its fast way."""

WORDS = (
    "a",
    "the",
    "of",
    "and",
    "Natalia",
    "sold",
    "clips",
    "to",
    "48",
    "her",
    "friends",
    "in",
    "April",
    "then",
    "half",
)

Read = Callable[[Sequence[int]], Sequence[dict[str, Any]]]


def write_rows(path: Path, num_bytes: int) -> int:
    """Writes rows until the file has that size; returns how many."""
    draw, rows = random.Random(0), 0
    pool = [" ".join(draw.choices(WORDS, k=draw.randint(20, 60))) for _ in range(10_000)]
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < num_bytes:
            lines = [
                json.dumps({"id": rows + i, "question": draw.choice(pool), "answer": f"{draw.choice(pool)} #### {i}"})
                for i in range(10_000)
            ]
            rows += len(lines)
            file.write("\n".join(lines) + "\n")
    return rows


def lockstep(path: Path) -> Callable[[], tuple[int, Read]]:
    from lockstep.data.jsonl import JsonlIndex

    def opened() -> tuple[int, Read]:
        index = JsonlIndex(path)
        return len(index), index.rows

    return opened


def hf_datasets(path: Path) -> Callable[[], tuple[int, Read]]:
    import datasets

    datasets.disable_progress_bars()

    def opened() -> tuple[int, Read]:
        rows = datasets.load_dataset(
            "json", data_files=str(path), split="train", cache_dir=os.environ["LOCKSTEP_CACHE"]
        )

        def read(indices: Sequence[int]) -> Sequence[dict[str, Any]]:
            columns = rows[list(indices)]
            return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

        return len(rows), read

    return opened


def json_loop(path: Path) -> Callable[[], tuple[int, Read]]:
    def opened() -> tuple[int, Read]:
        with path.open("rb") as file:
            rows = [json.loads(line) for line in file]
        return len(rows), lambda indices: [rows[i] for i in indices]

    return opened


SIDES = {"Lockstep": lockstep, "datasets": hf_datasets, "json.loads": json_loop}


def measured(side: str, path: Path) -> dict[str, float]:
    """Figures of one process that opens one file."""
    prepare = SIDES[side](path)
    before, wall, cpu = _resident_mb("VmRSS"), time.perf_counter(), time.process_time()
    num_rows, read = prepare()
    figures = {"open_s": time.perf_counter() - wall, "open_cpu_s": time.process_time() - cpu}
    figures["open_peak_mb"] = _resident_mb("VmHWM") - before
    draw = random.Random(1)
    batches = [[draw.randrange(num_rows) for _ in range(ROWS_AT_ONCE)] for _ in range(NUM_READS // ROWS_AT_ONCE)]
    wall = time.perf_counter()
    checked = sum(row["id"] == i for batch in batches for i, row in zip(batch, read(batch), strict=True))
    if checked != len(batches) * ROWS_AT_ONCE:
        raise RuntimeError(f"{side} returned other rows than were asked for")
    return figures | {"reads_per_s": checked / (time.perf_counter() - wall), "peak_mb": _resident_mb("VmHWM") - before}


def _resident_mb(field: str) -> float:
    """Resident memory of this process, now (VmRSS) or at its peak (VmHWM), MB (10⁶ bytes). Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def in_a_process(side: str, path: Path, cache: Path) -> dict[str, float]:
    """Runs `measured` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.index", "--side", side, "--file", str(path)]
    env = os.environ | {"LOCKSTEP_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)


def compared(found: dict[str, dict[str, float]], baseline: str) -> list[Row]:
    """Rows of the table beside one baseline. Where less is better the ratio is theirs by ours, else ours by theirs."""
    rows = []
    for opening in ("first", "second"):
        theirs, ours = found.get(f"{baseline}, {opening}"), found[f"Lockstep, {opening}"]
        if theirs is None:
            continue
        for key, unit in (("open_s", "s"), ("open_cpu_s", "CPU s"), ("peak_mb", "MB at the peak")):
            rows.append(Row(f"{opening} opening, {unit}", theirs[key], ours[key], theirs[key] / ours[key]))
    theirs, ours = found[f"{baseline}, first"]["reads_per_s"], found["Lockstep, second"]["reads_per_s"]
    return [*rows, Row("rows read at random, per second", theirs, ours, ours / theirs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/index.json")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measured(args.side, args.file)))
        return
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        num_rows = write_rows(path, int(args.gigabytes * 1e9))
        for side in SIDES:
            for opening in ("first", "second") if side != "json.loads" else ("first",):
                found[f"{side}, {opening}"] = in_a_process(side, path, Path(folder) / side)
    print(environment())
    unit = f"{num_rows:,} rows, {args.gigabytes:g} GB"
    tables = {baseline: compared(found, baseline) for baseline in ("datasets", "json.loads")}
    for baseline, rows in tables.items():
        print(table(rows, baseline, unit) + "\n")
    print(f"the first opening goes through {num_rows / found['Lockstep, first']['open_s']:,.0f} rows per second")
    if args.save:
        rows = [Row(f"{row.name}, beside {b}", row.baseline, row.ours, row.ratio) for b in tables for row in tables[b]]
        print(save("index", environment(), rows, {"rows": num_rows, "gigabytes": args.gigabytes, "processes": found}))


if __name__ == "__main__":
    main()
