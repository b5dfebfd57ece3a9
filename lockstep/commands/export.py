"""`lockstep export`: writes or uploads a run's model, or its adapters, in Hugging Face format."""

from __future__ import annotations

import argparse

from lockstep.commands.arguments import SubParsers, add_trust
from lockstep.system.paths import HUB, path_argument, source_argument
from lockstep.system.printable import print_text
from lockstep.system.process_defaults import spare_modules


def add_command(parsers: SubParsers) -> None:
    """Adds the command to a parser."""
    export = parsers.add_parser("export", help="write a run's model as a Hugging Face folder")
    export.add_argument("run", type=path_argument, help="folder of the run")
    export.add_argument(
        "out",
        type=source_argument,
        help="folder to write, which must not exist; or hf:owner/name to upload the model",
    )
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
    from tempfile import TemporaryDirectory

    with spare_modules():
        from lockstep.config.hub import parse_model, push_folder
        from lockstep.run.checkpoint.export import export_checkpoint

    out = options.out
    choices = options.checkpoint, options.dtype, options.adapter
    if out.startswith(HUB):
        name = parse_model(out)
        with TemporaryDirectory() as aside:
            folder = Path(aside) / "model"
            step = export_checkpoint(Path(options.run), folder, *choices)
            out = push_folder(folder, name)
    else:
        step = export_checkpoint(Path(options.run), Path(out), *choices)
    what, opener = (
        ("policy adapters", "peft") if options.adapter else ("the policy", "transformers")
    )
    print_text(f"{what} after {step} steps: {out} (opens with {opener})")
    return 0
