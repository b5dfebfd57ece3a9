"""Proof that a change of the code changes no number: `make bits`.

Runs every algorithm, training backend and sampler by a noted commit (bits_baseline) and by the
working tree on this machine, and compares the trained weights, the metrics and the samples byte for
byte. The commit's results are kept in build/bits/, so that a second time only the working tree
runs. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.bits_cases import Case, load_cases
from benchmarks.bits_outputs import SECONDS, Outputs, find_difference, keep
from benchmarks.bits_sides import (
    ROOT,
    Baseline,
    BitsError,
    Processes,
    require_import,
    run_case,
    usable_cores,
)

BASELINE = Path(__file__).with_name("bits_baseline")


@dataclass(frozen=True)
class Finding:
    """The outcome of a case.

    Attributes:
        case: Its name.
        seconds: Seconds of the baseline, when it ran, and of the working tree.
        tensors: Number of compared tensors.
        metrics: Number of compared metric values.
        samples: Number of compared rows of samples.
        difference: The first difference; None: there is none.
    """

    case: str
    seconds: tuple[float, float] = (0.0, 0.0)
    tensors: int = 0
    metrics: int = 0
    samples: int = 0
    difference: str | None = None

    def row(self) -> str:
        """A row of the table."""
        ours, theirs = self.seconds
        counts = f"{self.tensors} | {self.metrics} | {self.samples}"
        return (
            f"| {self.case} | {ours:.1f} | {theirs:.1f} | {counts} | "
            f"{'no' if self.difference else 'yes'} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    options = _parse(arguments)
    cases = [case for case in load_cases().values() if fnmatch(case.name, options.only)]
    if not cases:
        print(
            f"bits: no case is called {options.only}; there are: {', '.join(load_cases())}",
            file=sys.stderr,
        )
        return 2
    start = time.monotonic()
    processes = Processes()
    baseline = Baseline(BASELINE.read_text().strip(), options.cache, processes)
    try:
        require_import(ROOT)
        findings = _compare_all(
            [case for case in cases if case.lacks is None], baseline, options.jobs
        )
    except KeyboardInterrupt:
        print("bits: interrupted", file=sys.stderr)
        return 130
    except BitsError as error:
        print(f"bits: {error}", file=sys.stderr)
        return 1
    finally:
        processes.stop()
        baseline.close()
    _print_table(
        findings, [case for case in cases if case.lacks], time.monotonic() - start, baseline.commit
    )
    return int(any(finding.difference for finding in findings))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bits", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--only",
        default="*",
        metavar="PATTERN",
        help="cases of such names, as a shell would match them",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=max(1, usable_cores() // 2),
        metavar="N",
        help="cases that run at once",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=ROOT / "build" / "bits",
        metavar="FOLDER",
        help="where the baseline's results are",
    )
    return parser.parse_args(arguments)


def _compare_all(cases: Sequence[Case], baseline: Baseline, jobs: int) -> list[Finding]:
    """Compares each case, and reports a difference at once."""
    findings: dict[str, Finding] = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = [pool.submit(_compare, case, baseline) for case in cases]
        for future in as_completed(futures):
            finding = future.result()
            findings[finding.case] = finding
            said = finding.difference or "equal"
            print(f"{len(findings)}/{len(cases)} {finding.case}: {said}", flush=True)
    finally:
        baseline.processes.stop()
        pool.shutdown(cancel_futures=True)
    return [findings[case.name] for case in cases]


def _compare(case: Case, baseline: Baseline) -> Finding:
    try:
        kept = baseline.results(case)
        with run_case(case, ROOT, baseline, todays_names=True) as (results, seconds):
            ours = Outputs.read(kept).rename()
            theirs = Outputs.read(results)
            difference = find_difference(ours, theirs)
            if difference:
                keep(results, baseline.cache / "different" / case.name.replace("/", "-"))
    except BitsError as error:
        return Finding(case.name, difference=str(error))
    took = (float((kept / SECONDS).read_text()), seconds)
    return Finding(
        case.name, took, len(ours.tensors), ours.num_metrics, ours.num_samples, difference
    )


def _print_table(
    findings: Sequence[Finding], left_out: Sequence[Case], seconds: float, commit: str
) -> None:
    print("\n| case | baseline s | HEAD s | tensors | metric values | sample rows | equal |")
    print("|---|---:|---:|---:|---:|---:|---|")
    print("\n".join(finding.row() for finding in findings))
    for case in left_out:
        print(f"{case.name} is left out: {case.lacks}")
    different = [finding for finding in findings if finding.difference]
    for finding in different:
        print(f"\n{finding.case}: {finding.difference}")
    said = f"{len(different)} of them differ" if different else "all are equal"
    print(f"\n{len(findings)} cases against {commit[:7]} in {seconds:.0f} s: {said}")


if __name__ == "__main__":
    # the baseline's tree is taken away then, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
