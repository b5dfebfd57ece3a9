"""Score by location of `lockstep_doctor.examine` on the lists of faults, and how many healthy cases it leaves.

    python -m benchmarks.doctor_faults [MODEL] [--which tuning|heldout|pairs|controls|all] [--sweep] [--seed N]
                                       [--out FOLDER]

188 faults, each large and small, ten pairs and 50 healthy cases. The same command resumes where it was stopped, if it
has `--out`; parts share what is remembered in one folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.doctor_faults.run import selftest
from benchmarks.doctor_faults.suites import SUITES


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.doctor_faults",
        description="Inject the faults of all lists into real backends, and count which ones are located.",
        epilog="Exit codes: 0 no place is wrong, 2 could not start, 4 one is, or a healthy case raises an alarm.",
    )
    parser.add_argument("--which", default="all", choices=list(SUITES), help="part of the benchmark (default: all)")
    parser.add_argument("model", nargs="?", help="folder that stands for the small random Llama of the faults")
    parser.add_argument("--sweep", action="store_true", help="look for the least magnitude of each fault that is found")
    parser.add_argument("--seed", type=int, default=0, help="of models and prompts (default: 0)")
    parser.add_argument("--out", help="folder of the results; the same command then resumes where it was")
    options = parser.parse_args(words)
    out = None if options.out is None else Path(options.out)
    return selftest(options.model, out, options.sweep, options.seed, suite=SUITES[options.which])


if __name__ == "__main__":
    sys.exit(main())
