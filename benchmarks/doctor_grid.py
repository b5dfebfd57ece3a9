"""The doctor's default grid on a model with a context of 16,384 tokens, with four backends, in fp32 and in bf16.

    python -m benchmarks.doctor_grid [--folder grid_16k] [--dtypes fp32 bf16] [--save]

A small model is trained for 30 steps, and `lockstep doctor table` runs on it once for each type. All of it resumes
where it was stopped. CPU seconds are those of all processes, of all calls together; `--save` writes the tables to
`benchmarks/results/doctor/`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import environment
from lockstep.helpers.sandbox.linux import adopt_orphans

BACKENDS = "backends=[hf,torch,vllm,megatron]"
SIZES = {
    "max_position_embeddings": 16384, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 172,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
MODEL = ["train", "sft_letters", *(f"model.scratch.config.{name}={size}" for name, size in SIZES.items())]
LOCKSTEP = [sys.executable, "-c", "import sys; from lockstep.cli import main; sys.exit(main())"]
RESULTS = Path(__file__).resolve().parent / "results" / "doctor"


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("grid_16k"))
    parser.add_argument("--dtypes", nargs="+", choices=("fp32", "bf16"), default=("fp32", "bf16"))
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    adopt_orphans()  # whose CPU seconds are counted, too
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "final").is_dir():
        run([*MODEL, "run.max_steps=30", f"run.folder={folder / 'model'}"])
    for dtype in options.dtypes:
        command = ["doctor", "table", str(folder / "model" / "final"), BACKENDS, "grid.budget_s=null"]
        if dtype != "fp32":
            command.append(f"learner.dtype={dtype}")
        with count_cpu(folder / f"{dtype}.jsonl"):
            if not (folder / dtype / "report.json").is_file():
                run([*command, f"run.folder={folder / dtype}"])
        if options.save:
            (RESULTS / f"grid_16k_{dtype}.md").write_text(describe(folder, dtype, command))


def run(arguments: Sequence[str]) -> None:
    """Runs a command of Lockstep, and waits for all that it started; a verdict is no failure."""
    code = subprocess.run([*LOCKSTEP, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    if code not in (0, 3, 4):
        raise SystemExit(code)


@contextmanager
def count_cpu(log: Path) -> Iterator[None]:
    """Adds a line with the CPU seconds of all that ran, and the largest process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        yield
    finally:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        with log.open("a") as file:
            file.write(json.dumps({"cpu_s": round(seconds, 1), "largest_mb": after.ru_maxrss // 1024}) + "\n")


def describe(folder: Path, dtype: str, command: Sequence[str]) -> str:
    """The table with what it took and how it was made."""
    spent = [json.loads(line) for line in (folder / f"{dtype}.jsonl").read_text().splitlines()]
    minutes = sum(one["cpu_s"] for one in spent) / 60
    calls = sum(one["cpu_s"] > 1 for one in spent)
    return "\n".join(
        [
            f"# The default grid on a model with a context of 16,384 tokens, {dtype}",
            "",
            f"`python -m benchmarks.doctor_grid --dtypes {dtype} --save`: {minutes:.1f} CPU minutes of all processes "
            f"in {calls} call{'s' * (calls != 1)}, the largest process {max(one['largest_mb'] for one in spent):,} MB. "
            f"It runs `lockstep {' '.join(command)}` on a model of 2 layers of width 64, trained for 30 steps by "
            f"`lockstep {' '.join(MODEL)} run.max_steps=30`.",
            "",
            environment(1),
            "",
            (folder / dtype / "table.md").read_text(),
        ]
    )


if __name__ == "__main__":
    main()
