"""Programs per second in the sandbox, beside `subprocess.run` of the same interpreter without any.

    python -m benchmarks.sandbox [--save]

Each program reads a number and prints its double. The baseline starts it with `python -I -S -c`, has a limit on time
and nothing else, and runs as many at a time as the sandbox does (`code.sandboxes`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness import Row, environment, save, table
from lockstep.helpers.sandbox.sandbox import Limits, Sandbox

PROGRAMS = 200
PROGRAM = "print(int(input()) * 2)"
LIMITS = Limits(cpu_s=5, wall_s=20.0, memory_mb=512, file_mb=8, processes=8)


def plain(interpreter: str) -> str:
    command = [interpreter, "-I", "-S", "-c", PROGRAM]
    return subprocess.run(command, input="21", capture_output=True, text=True, timeout=20, env={}, check=True).stdout


def per_second(run: Callable[[int], str | None], programs: int, at_a_time: int) -> float:
    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(run, range(at_a_time)))
        begun = time.perf_counter()
        printed = list(pool.map(run, range(programs)))
    assert set(printed) == {"42\n"}
    return programs / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    sandbox, rows = Sandbox(LIMITS), []
    sandbox.start()
    for at_a_time in (1, os.cpu_count() or 1, 2 * (os.cpu_count() or 1)):
        ours = per_second(lambda i: sandbox.output(PROGRAM, "21"), PROGRAMS, at_a_time)
        baseline = per_second(lambda i: plain(sandbox.interpreter), PROGRAMS, at_a_time)
        rows.append(Row(f"{at_a_time} at a time", baseline, ours, ours / baseline))
    print(table(rows, "subprocess.run", "programs per second"))
    print(environment())
    if options.save:
        print(save("sandbox", environment(), rows, {"programs": PROGRAMS}))


if __name__ == "__main__":
    main()
