"""`lockstep gpu-check`: checks what works on this machine's GPUs, and how fast, in minutes."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_out
from lockstep.core.errors import InputError
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    check = parsers.add_parser(
        "gpu-check",
        help="check in minutes what works on this machine's GPUs and how fast it is",
        epilog="Exit codes: 0 ok, 1 a check failed, 2 could not start, 4 a guarantee is broken.",
    )
    check.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="default: the GPU, if there is one",
    )
    add_out(check, "FOLDER", "results folder (default: gpu-check)", "gpu-check")
    check.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    out = Path(options.out)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; give a folder")
    with spare_modules():
        from lockstep_doctor.machine.command import check_machine

    return check_machine(options.device, out)
