"""What `benchmarks.ppo_step` and `benchmarks.group_step` share: options, rounds of three sides, and
their tables.

The sides of a round run one after the other, each in a process of its own: TRL, Lockstep exact, as
users have it by default, and Lockstep inexact, which is what TRL computes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, environment, parser_of, save, side, table
from benchmarks.small_llama import SIZES

Round = list[dict[str, Any]]
"""What the sides of a round printed."""


def parser_for(doc: str | None, release: str, python: Path) -> argparse.ArgumentParser:
    """A parser of the common options.

    Args:
        doc: What the benchmark is.
        release: That of TRL.
        python: Where its interpreter is, unless said otherwise.
    """
    parser = parser_of(doc)
    parser.add_argument(
        "--trl-python", type=Path, default=python, help=f"an interpreter that has TRL {release}"
    )
    parser.add_argument(
        "--size", nargs="+", default=["default"], choices=SIZES, help="sizes of the model"
    )
    counts = {"prompts": 16, "prompt-tokens": 16, "new-tokens": 32, "minibatches": 1, "steps": 15}
    for name, usual in counts.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="processes per side; medians count")
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the options; ends if TRL's interpreter is missing."""
    args = parser.parse_args()
    if not args.trl_python.exists():
        parser.error(
            f"{args.trl_python} is missing; --help has the two commands that make it, or give "
            "--trl-python"
        )
    return args


def run_rounds(args: argparse.Namespace, theirs: str, ours: str, *options: str) -> list[Round]:
    """Runs the modules of both programs, with the same options."""
    names = ("prompts", "prompt_tokens", "new_tokens", "minibatches", "steps")
    counts = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in names]
    run = partial(side, threads=args.threads)
    return [
        [
            run(args.trl_python, theirs, *options, *counts),
            run(Path(sys.executable), ours, *options, *counts, "--exact"),
            run(Path(sys.executable), ours, *options, *counts),
        ]
        for _ in range(args.rounds)
    ]


def step_rows(name: str, rounds: Sequence[Round], clock: str) -> list[Row]:
    """Rows of Lockstep exact and inexact, beside TRL by one of its clocks."""
    theirs = statistics.median(sides[0][clock] for sides in rounds)
    own = [statistics.median(sides[place]["cpu_s"] for sides in rounds) for place in (1, 2)]
    return [
        Row(f"{name}, {how}", theirs, s, theirs / s)
        for how, s in zip(("exact", "inexact"), own, strict=True)
    ]


def show(
    name: str, release: str, measured: dict[str, list[Round]], args: argparse.Namespace
) -> None:
    """Prints two tables, with TRL as it ships and without its garbage collections, and saves them
    if asked to.
    """
    where = environment(threads=args.threads)
    baseline = f"TRL {release}"
    shipped, without = (
        [row for setting, rounds in measured.items() for row in step_rows(setting, rounds, clock)]
        for clock in ("cpu_s", "cpu_without_gc_s")
    )
    print(where, table(shipped, baseline, "CPU s per step"), "", sep="\n")
    print(table(without, f"{baseline} less its garbage collection", "CPU s per step"), "", sep="\n")
    for setting, rounds in measured.items():
        peaks = " / ".join(
            f"{max(sides[place]['peak_rss_mb'] for sides in rounds):.0f}" for place in range(3)
        )
        print(f"{setting}: at most {peaks} MB (TRL, exact, inexact)")
    if args.save:
        processes = [
            process for rounds in measured.values() for sides in rounds for process in sides
        ]
        details = {
            "without_garbage_collection": [asdict(row) for row in without],
            "processes": processes,
        }
        print(save(name, where, shipped, details))
