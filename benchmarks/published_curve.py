"""The published PPO curve, for anyone with the GPUs: two backends, right shift on and off, three seeds, one file back.

    make published-curve MODEL=FOLDER DATA=FOLDER
    python -m benchmarks.published_curve MODEL DATA [--seeds 42,43,44] [--out published-curve] [key=value …]

MODEL is the folder of Qwen2.5-1.5B-Instruct, DATA one with GSM8K as `train.jsonl` and `test.jsonl`. Each of the twelve
runs is the shipped recipe by `lockstep train`; those without the shift are it by `benchmarks.unshifted`. `key=value`
overrides go to all of them, such as `learner.parallel.dp=4` for four GPUs.

The same command resumes where it was stopped: finished runs stay, the others resume from their newest checkpoint. The
checkpoints of a finished run are removed, since those of twelve would fill a disk; its `final/` stays. What is to be
sent back is `OUT/published_curve.tar.gz`, which is written anew after every run.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.curve_arms import OURS, RECIPES, TEST, TRAIN, Arm, Attempt, Kit, arms_of
from benchmarks.curve_results import ARCHIVE, SUMMARY, Result, collect, write
from benchmarks.curve_words import find_mistake
from lockstep import exit_codes

ROOT = Path(__file__).resolve().parent.parent
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = (exit_codes.INTERRUPTED, exit_codes.TERMINATED, exit_codes.HUNG_UP)


def dry_run(kit: Kit, arms: Sequence[Arm]) -> str | None:
    """Tries the first unfinished run of each backend without starting it; returns the first problem."""
    for backend in RECIPES:
        waiting = [arm for arm in arms if arm.backend == backend and not kit.finished(arm)]
        for arm in waiting[:1]:
            done = subprocess.run(kit.train(arm, "--dry-run"), cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{RECIPES[backend]} cannot start:\n{done.stderr.strip()}"
    return None


def run_arms(kit: Kit, arms: Sequence[Arm]) -> list[Result]:
    """Runs all that is unfinished, one after the other, and writes the archive to send back after each.

    A run that fails does not keep the next from starting; one that is stopped by a signal does.
    """
    for number, arm in enumerate(arms, 1):
        if kit.finished(arm):
            print(f"{number} of {len(arms)}: {arm.name} is finished", flush=True)
            continue
        print(f"{number} of {len(arms)}: {arm.name}, which prints to {kit.log(arm)}", flush=True)
        code = _attempt(kit, arm)
        results = _written(kit, arms)
        print(f"   {results[number - 1].state}", flush=True)
        if code in STOPPED:
            break
    return _written(kit, arms)


def _written(kit: Kit, arms: Sequence[Arm]) -> list[Result]:
    results = [collect(kit, arm) for arm in arms]
    write(kit, results)
    return results


def _attempt(kit: Kit, arm: Arm) -> int:
    """Runs one arm until it ends; returns its exit code."""
    kit.log(arm).parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with kit.log(arm).open("ab") as log:
        code = _run(kit.train(arm), log.fileno())
    kit.note(arm, Attempt(code, time.monotonic() - started))
    if kit.finished(arm):
        shutil.rmtree(kit.folder(arm) / "checkpoints", ignore_errors=True)
    return code


def _run(command: Sequence[str], output: int) -> int:
    """Runs a command to its end and forwards signals to it; returns its exit code.

    It has a session of its own, so that Ctrl-C reaches it once: from here.
    """
    children: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    ours = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, hand_on) for number in ours}
    try:
        children.append(
            subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        )
        code = children[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _exit_code(results: Sequence[Result]) -> int:
    """The exit code; runs without the shift only have to finish."""
    if not all(result.finished for result in results):
        return exit_codes.CRASH
    return exit_codes.OK if all(result.passed for result in results if result.arm.shift) else exit_codes.BROKEN


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _parsed(arguments: Sequence[str] | None) -> tuple[Kit, list[int]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="folder of Qwen2.5-1.5B-Instruct")
    parser.add_argument("data", metavar="DATA", help=f"folder with {TRAIN} and {TEST} of GSM8K")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="options of the recipes")
    parser.add_argument("--seeds", type=_numbers, default="42,43,44", help="of the runs (default: 42,43,44)")
    parser.add_argument("--out", type=Path, default=Path("published-curve"), help="folder (default: published-curve)")
    options = parser.parse_intermixed_args(arguments)
    mistake = find_mistake(options.model, options.data)
    if mistake is not None:
        parser.error(mistake)
    for word in options.overrides:
        key, equals, _ = word.partition("=")
        if not equals or key in OURS:
            parser.error(f"{word!r} is no key=value, or one of those that the kit sets itself: {', '.join(OURS)}")
    model, data, out = (Path(text).expanduser().resolve() for text in (options.model, options.data, options.out))
    return Kit(model, data, out, tuple(options.overrides)), options.seeds


def main(arguments: Sequence[str] | None = None) -> int:
    kit, seeds = _parsed(arguments)
    arms = arms_of(seeds)
    obstacle = dry_run(kit, arms)
    if obstacle is not None:
        print(obstacle, file=sys.stderr)
        return exit_codes.INPUT
    results = run_arms(kit, arms)
    print((kit.out / SUMMARY).read_text())
    print(f"To send back: {kit.out / ARCHIVE}")
    return _exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
