"""CPU seconds of a step of GRPO, RLOO, DPO or SFT beside TRL 1.16.0's trainers of them.

    python3 -m venv benchmarks/.venv-trl-preference
    benchmarks/.venv-trl-preference/bin/pip install torch==2.13.0 trl==1.16.0 \\
        transformers==5.19.0 --extra-index-url https://download.pytorch.org/whl/cpu
    python -m benchmarks.group_step [--size toy default 512x8] [--save]
    python -m benchmarks.group_step --algorithm dpo sft --prompts 8 --prompt-tokens 256

All sides train the same Llama, of the sizes asked for, on 16 responses of 32 new tokens at
temperature 1, to prompts of 16 tokens, in one micro-batch and one update, by AdamW in fp32, on one
thread, on 2 prompts with 8 responses each, RLOO with a reference; options change the numbers. DPO
and SFT train the real model that `make real-model` makes, on pairs of random words and on GSM8K's
rows. The clock is CPU time from one
step to the next, and the median step counts. These trainers of TRL do not call the garbage
collector, so that the second table, in which all collecting is taken off TRL's figures, is the
first one but for what Python collects by itself.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.real_model import folder
from benchmarks.small_llama import SIZES
from benchmarks.step_table import parse, parser_for, run_rounds, show

TRL_PYTHON = Path(__file__).resolve().parent / ".venv-trl-preference" / "bin" / "python"


def main() -> None:
    """Entry point."""
    parser = parser_for(__doc__, "1.16.0", TRL_PYTHON)
    parser.add_argument("--algorithm", nargs="+", default=["grpo", "rloo"])
    args = parse(parser)
    measured = {}
    for algorithm in args.algorithm:
        own = ("--algorithm", algorithm)
        theirs = "benchmarks.baselines.trl_group"
        if algorithm in ("dpo", "sft"):
            ours = "benchmarks.lockstep_trained"
            measured[algorithm] = run_rounds(args, theirs, ours, *own, "--model", str(folder()))
            continue
        for size in args.size:
            measured[f"{algorithm}, {size}"] = run_rounds(
                args, theirs, "benchmarks.lockstep_group", *own, *SIZES[size].options
            )
    show("group_step", "1.16.0", measured, args)


if __name__ == "__main__":
    main()
