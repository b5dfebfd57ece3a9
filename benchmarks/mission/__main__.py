"""The mission, proven on a real model: `make mission`.

Measures each part, or what is missing of it, and writes the page docs/mission.md with its pictures.
Stopped at any instant, the same command goes on. Results stand in benchmarks/results/mission.json;
`--page` writes the page of those. `--long` measures more of the parts that have a longer form:
`make mission-long`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import real_model
from benchmarks.harness import RESULTS, environment
from benchmarks.mission import agreement, logprobs, ppo, self_rewarding
from benchmarks.mission.programs import ROOT, MissionError
from lockstep.helpers.descendants import adopt_orphans

PARTS: dict[str, ModuleType] = {
    "ppo": ppo,
    "self_rewarding": self_rewarding,
    "logprobs": logprobs,
    "agreement": agreement,
}
LONGER = frozenset({"agreement"})
"""Parts that have a longer form; their `measure` takes `long`."""
FILE = RESULTS / "mission.json"
PAGE = ROOT / "docs" / "mission.md"
_ORPHANS_S = 10.0
"""How long the end of processes is awaited whose program has ended."""


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mission", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="parts; none: all")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="programs at a time, each on one thread",
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "mission", help="folder of runs and logs"
    )
    parser.add_argument(
        "--long", action="store_true", help=f"the longer form of {', '.join(sorted(LONGER))}"
    )
    parser.add_argument(
        "--nemo-rl",
        type=Path,
        metavar="FOLDER",
        help="a checkout of NeMo RL, which logprobs compares",
    )
    parser.add_argument("--page", action="store_true", help="measure nothing")
    options = parser.parse_args()
    adopt_orphans()  # whose CPU seconds are counted, too
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    try:
        for name in () if options.page else options.parts or PARTS:
            print(f"{name}: {PARTS[name].TITLE}; logs are in {options.work / name}", flush=True)
            more: dict[str, Any] = {"long": options.long} if name in LONGER else {}
            if name == "logprobs":
                more = {"nemo_rl": options.nemo_rl, "earlier": results.get(name, {}).get("found")}
            results[name] = _measure(name, (options.work / name).resolve(), options.jobs, **more)
            FILE.write_text(json.dumps(results, indent=1) + "\n")
    except MissionError as error:
        print(f"mission: {error}", file=sys.stderr)
        return 1
    for file, text in write(results).items():
        file.write_text(text, encoding="utf-8")
        print(file)
    return 0


def _measure(name: str, work: Path, jobs: int, **more: Any) -> dict[str, Any]:
    """Measures a part. Its minutes are those of all calls that the folder of its work has seen."""
    start = time.monotonic()
    cpu_start = _child_cpu_seconds()
    try:
        found = PARTS[name].measure(real_model.make(), work, jobs, **more)
    finally:
        _await_orphans()
        passed = {
            "minutes": time.monotonic() - start,
            "cpu_minutes": _child_cpu_seconds() - cpu_start,
        }
        spent = _add_up(work / "spent.json", {key: seconds / 60 for key, seconds in passed.items()})
    return {"environment": environment(jobs), **spent, "found": found}


def _add_up(file: Path, more: dict[str, float]) -> dict[str, float]:
    """Adds to the figures of a file, if it exists, and writes them there. Returns the sums."""
    before = json.loads(file.read_text()) if file.exists() else {}
    sums = {name: before.get(name, 0.0) + value for name, value in more.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sums) + "\n")
    return sums


def _child_cpu_seconds() -> float:
    """CPU seconds of all programs that have ended: what a part costs, also beside other work on the
    machine.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _await_orphans() -> None:
    """Waits until processes have ended that outlive their program for a moment, as ranks and
    engines do.

    Only those count in `_child_cpu_seconds` that this process has waited for.
    """
    deadline = time.monotonic() + _ORPHANS_S
    while time.monotonic() < deadline:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(0.01)


def write(results: dict[str, Any]) -> dict[Path, str]:
    """The page and its pictures, by their files."""
    files = {}
    sections = []
    for number, (name, part) in enumerate(PARTS.items(), start=1):
        sections += ["", f"## {number}. {part.TITLE}", ""]
        if name not in results:
            sections += [f"Not measured yet: `python -m benchmarks.mission {name}`."]
            continue
        picture = PAGE.parent / "pictures" / f"mission_{name}.svg"
        files[picture] = part.draw(results[name]["found"])
        command = f"`python -m benchmarks.mission {name}`"
        minutes = (
            f"{results[name]['minutes']:.0f} minutes, {results[name]['cpu_minutes']:.0f} "
            "CPU minutes"
        )
        about = f"{command}: {minutes} on {results[name]['environment']}."
        sections += [
            f"![{part.TITLE}](pictures/{picture.name})",
            "",
            *part.describe(results[name]["found"]),
            "",
            about,
        ]
    files[PAGE] = "\n".join([*HEAD, *sections]) + "\n"
    return files


HEAD = (
    "# The mission, on a real model",
    "",
    (
        f"`make mission` measures what Lockstep promises on your machine, with {real_model.NAME}, "
        "and writes this page."
    ),
    (
        "The weights are dequantized from 4 bits and come from a package of the Python index "
        "(`make real-model`)."
    ),
    "What does not hold is shown as not holding.",
)


if __name__ == "__main__":
    sys.exit(main())
