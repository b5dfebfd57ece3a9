"""`lockstep export`: writes a run's model, or its adapters, as a Hugging Face folder."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_trust
from lockstep.system.paths import path_argument
from lockstep.system.printable import print_text
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    export = parsers.add_parser("export", help="write a run's model as a Hugging Face folder")
    export.add_argument("run", type=path_argument, help="folder of the run")
    export.add_argument("out", type=path_argument, help="folder to write; must not exist")
    export.add_argument(
        "--checkpoint", default="latest", help="latest, best (by run.best), or a step number"
    )
    export.add_argument(
        "--dtype",
        default="fp32",
        choices=("fp32", "bf16"),
        help=("dtype of the weights (default: fp32)"),
    )
    export.add_argument(
        "--adapter",
        action="store_true",
        help="export only the learner.lora adapters, in peft format",
    )
    add_trust(export)
    export.set_defaults(command=run_command)


def run_command(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    from pathlib import Path

    with spare_modules():
        from lockstep.run.checkpoint.export import export_checkpoint

    step = export_checkpoint(
        Path(options.run), Path(options.out), options.checkpoint, options.dtype, options.adapter
    )
    what, opener = (
        ("policy adapters", "peft") if options.adapter else ("the policy", "transformers")
    )
    print_text(f"{what} after {step} steps: {options.out} (opens with {opener})")
    return 0
