"""How many faults of the whole lists the doctor names, and how many healthy cases it leaves in peace.

    python -m benchmarks.doctor_faults [MODEL] [--which tuning|heldout|pairs|controls|all] [--sweep] [--seed N]
                                       [--out FOLDER]

188 faults, each large and small, ten pairs and 50 healthy cases take an hour and a half on two cores. The same command
resumes where it was stopped, if it has `--out`. Twelve of the faults are those of `lockstep doctor selftest`, which has
the same runner and the same table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.doctor_faults.suites import SUITES
from lockstep.commands.doctor import add_selftest_options
from lockstep.doctor.selftest.run import selftest


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.doctor_faults",
        description="Inject the faults of all lists into real backends, and count which ones are named.",
        epilog="Exit codes: 0 no name is wrong, 2 could not start, 4 one is, or a healthy case raises an alarm.",
    )
    parser.add_argument("--which", default="all", choices=list(SUITES), help="part of the benchmark (default: all)")
    add_selftest_options(parser)
    options = parser.parse_args(words)
    out = None if options.out is None else Path(options.out)
    return selftest(options.model, out, options.sweep, options.seed, SUITES[options.which])


if __name__ == "__main__":
    sys.exit(main())
