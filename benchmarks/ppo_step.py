"""CPU seconds of one PPO step beside TRL 1.12.0, the last release of TRL that has a PPO trainer.

    python3 -m venv benchmarks/.venv-trl
    benchmarks/.venv-trl/bin/pip install torch==2.13.0 trl==1.12.0 transformers==5.19.0 \\
        --extra-index-url https://download.pytorch.org/whl/cpu
    python -m benchmarks.ppo_step [--size toy default 512x8] [--save]

All sides train the same Llama, of the sizes asked for, on 16 prompts of 16 tokens with 32 new
tokens each unless options say otherwise, at temperature 1, with a reference policy whose KL (k1, 0.05) is part of the reward,
one update of policy and critic per epoch, on one thread unless --threads says otherwise. The clock is CPU time of the whole step,
from one step to the next; the median step counts.

TRL's trainer calls Python's garbage collector twice a step, which on a model this small is half of
its time and more; on a large one it would not matter. So there is a second table, in which all
collecting is taken off TRL's figures and nothing off ours.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.small_llama import SIZES
from benchmarks.step_table import parse, parser_for, run_rounds, show

TRL_PYTHON = Path(__file__).resolve().parent / ".venv-trl" / "bin" / "python"


def main() -> None:
    """Entry point."""
    args = parse(parser_for(__doc__, "1.12.0", TRL_PYTHON))
    sides = "benchmarks.baselines.trl_ppo", "benchmarks.lockstep_ppo"
    measured = {
        f"PPO, {size}, epochs: {epochs}": run_rounds(
            args, *sides, "--epochs", epochs, *SIZES[size].options
        )
        for size in args.size
        for epochs in ("1", "4")
    }
    show("ppo_step", "1.12.0", measured, args)


if __name__ == "__main__":
    main()
