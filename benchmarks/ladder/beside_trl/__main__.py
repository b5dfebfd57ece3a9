"""Learning beside TRL: the same first weights, rows, rewards and settings, and one judge of both.

    python3 -m venv benchmarks/.venv-trl-preference
    benchmarks/.venv-trl-preference/bin/pip install torch==2.13.0 trl==1.16.0 transformers==5.19.0 \\
        --extra-index-url https://download.pytorch.org/whl/cpu
    python3 -m venv benchmarks/.venv-trl
    benchmarks/.venv-trl/bin/pip install torch==2.13.0 trl==1.12.0 transformers==5.19.0 \\
        --extra-index-url https://download.pytorch.org/whl/cpu
    python -m benchmarks.ladder.beside_trl                    # runs what is missing, then prints the table
    python -m benchmarks.ladder.beside_trl grpo --seeds 0     # one case, one seed
    python -m benchmarks.ladder.beside_trl --show             # the table of what has been measured

A case trains by `lockstep train` and by TRL's trainer, each in a process of its own on one thread, from the warm start
that Lockstep trained, on the same rows in the same order, with the same optimizer at a constant learning rate. Both
sides save the policy, or reward model, every few steps, and one judge measures it exactly, without sampling. Seeds
differ in the order of rows, in what is sampled, and in the first weights of a value or reward head.

CPU seconds are counted from the end of the first step, in which both sides warm up, with all that a side does in a step
by its nature: Lockstep reports the agreement of sampler and learner, logs, and attests the refit; TRL's side logs
nothing. Both write their weights; Lockstep writes whole checkpoints.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from benchmarks.harness import environment
from benchmarks.ladder.beside_trl import sides
from benchmarks.ladder.beside_trl.cases import CASES, Case, open_case
from benchmarks.ladder.beside_trl.results import SIDES, Curve, add_curve, read_curves, table

PYTHONS = {"1.16.0": ".venv-trl-preference", "1.12.0": ".venv-trl"}
"""Environments in `benchmarks/`, by the release of TRL that they have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("cases", nargs="*", choices=[*names, []], help="cases; none: all of them")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds; none: as many as the case says")
    parser.add_argument("--out", type=Path, default=Path("build/ladder/beside_trl"), help="folder of runs")
    parser.add_argument("--show", action="store_true", help="run nothing")
    options = parser.parse_args()
    cases = [open_case(name) for name in options.cases or names]
    for case in [] if options.show else cases:
        python = sides.ROOT / "benchmarks" / PYTHONS[case.release] / "bin" / "python"
        if not python.exists():
            parser.error(f"there is no {python}; --help has the commands that make it")
        for seed in options.seeds or range(case.seeds):
            for side in SIDES:
                run(case, seed, side, options.out.resolve(), python)
    print(table(cases))


def run(case: Case, seed: int, side: str, out: Path, python: Path) -> None:
    """Trains one side of a case and measures it, unless that has been done with these settings."""
    settings = case.digest(seed)
    if any((one.case, one.seed, one.side, one.settings) == (case.name, seed, side, settings) for one in read_curves()):
        return
    folder = out / f"{case.name.replace(', ', '-')}-{seed}-{side}"
    shutil.rmtree(folder, ignore_errors=True)
    if side == "trl":
        sides.train_theirs(case, seed, folder, python)
    else:
        sides.train_ours(case, seed, folder)
    program, clock = sides.read_clock(folder)
    steps = range(case.every, case.steps + 1, case.every)
    first, judged = sides.write_first(case, seed, out), case.load(0)
    values = [case.measure(model, judged) for model in (first, *(folder / str(step) for step in steps))]
    seconds = (0.0, *(clock[step - 1] for step in steps))
    machine = environment(threads=1)
    add_curve(Curve(case.name, side, seed, settings, (0, *steps), tuple(values), seconds, program, machine))
    print(
        f"{case.name} · seed {seed} · {side} · {values[0]:.4f} → {values[-1]:.4f} · {seconds[-1]:.1f} CPU s", flush=True
    )


if __name__ == "__main__":
    main()
