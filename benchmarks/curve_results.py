"""The results of the runs of `benchmarks.published_curve`, and the one file that is sent back.

    published_curve.tar.gz
      summary.md      which runs finished, passed, failed, and what the right shift was worth
      result.json     the same for programs, with every verdict of `lockstep check`, versions, machine and GPUs
      runs/NAME/      recipe.yaml, metrics.jsonl, timings.jsonl, environment.json, crash.txt, the end of its log

There are no weights, no samples and no environment variables in it; recipes hold the paths of model and data.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import json
import platform
import subprocess
import tarfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lockstep
from benchmarks.curve_arms import LATE, Arm, Attempt, Kit
from lockstep.config.loading import load_run
from lockstep.report.acceptance import BoundResult, check
from lockstep.report.log import plain, read_metrics

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE, SUMMARY = "published_curve.tar.gz", "summary.md"
WINDOW = 10
SENT = ("recipe.yaml", "metrics.jsonl", "timings.jsonl", "environment.json", "crash.txt")
LAST_LINES = 200
COMPUTING = ("torch", "transformers", "tokenizers", "vllm", "megatron", "triton", "nvidia-", "flash", "numpy", "ray")
"""Prefixes of packages that a run may compute with."""


@dataclass(frozen=True)
class Result:
    """The result of one run.

    Attributes:
        begun: True if it was ever started.
        finished: True if it came to its end.
        steps: Number of trained steps.
        verdicts: Verdicts of `lockstep check`; none if it was not started.
        reward: Mean train/reward of the last `WINDOW` steps; None where there is none.
        accuracy: Accuracy of the last validation; None where there is none.
        late: Number of processes that read values one token late: none with the shift, and some without.
        attempts: Finished attempts.
    """

    arm: Arm
    begun: bool
    finished: bool
    steps: int
    verdicts: tuple[BoundResult, ...]
    reward: float | None
    accuracy: float | None
    late: int
    attempts: tuple[Attempt, ...]

    @property
    def sound(self) -> bool:
        """True if the right shift was on or off as the run's name says."""
        return self.arm.shift == (self.late == 0)

    @property
    def passed(self) -> bool:
        """True if it came to its end and keeps every bound of its recipe."""
        return self.finished and self.sound and bool(self.verdicts) and all(one.passed for one in self.verdicts)

    @property
    def state(self) -> str:
        """The state in words."""
        if not self.begun:
            return "not started"
        if not self.finished:
            code = f", exit code {self.attempts[-1].exit_code}" if self.attempts else ""
            return f"unfinished after {self.steps} step{'s' * (self.steps != 1)}{code}"
        if not self.sound:
            return "finished, but void: the right shift was not as the name says"
        if not self.verdicts:
            return "finished, but the recipe has no bounds"
        return "finished and passed" if self.passed else "finished and failed"

    def plain(self) -> dict[str, Any]:
        """The result as JSON types."""
        verdicts = [{"passed": one.passed, "value": one.value, "sentence": one.sentence} for one in self.verdicts]
        return plain({"state": self.state, **asdict(self), "verdicts": verdicts})


def collect(kit: Kit, arm: Arm) -> Result:
    """Reads the files of a run."""
    folder, log = kit.folder(arm), kit.log(arm)
    there = (folder / "recipe.yaml").is_file()
    rows = read_metrics(folder) if there else []
    bounds = load_run(folder).training.acceptance if there else ()
    rewards = list({row["step"]: row["train/reward"] for row in rows if "train/reward" in row}.values())[-WINDOW:]
    accuracies = [row["validation/accuracy"] for row in rows if "validation/accuracy" in row]
    return Result(
        arm=arm,
        begun=log.exists(),
        finished=kit.finished(arm),
        steps=max((int(row["step"]) for row in rows), default=0),
        verdicts=tuple(check(bounds, rows)),
        reward=sum(rewards) / len(rewards) if rewards else None,
        accuracy=accuracies[-1] if accuracies else None,
        late=log.read_text(errors="replace").count(LATE) if log.exists() else 0,
        attempts=tuple(kit.attempts(arm)),
    )


def write(kit: Kit, results: Sequence[Result]) -> None:
    """Writes the summary and the archive, the latter whole or not at all."""
    kit.out.mkdir(parents=True, exist_ok=True)
    text = summary(results, kit.overrides)
    (kit.out / SUMMARY).write_text(text)
    found = {"overrides": list(kit.overrides), "machine": _machine(), "runs": [result.plain() for result in results]}
    aside = kit.out / f".{ARCHIVE}"
    with tarfile.open(aside, "w:gz") as archive:
        _add(archive, SUMMARY, text)
        _add(archive, "result.json", json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        for result in results:
            for name, content in _files(kit, result.arm):
                _add(archive, f"runs/{result.arm.name}/{name}", content)
    aside.replace(kit.out / ARCHIVE)


def summary(results: Sequence[Result], overrides: Sequence[str]) -> str:
    """Runs that finished, passed and failed, and the effect of the shift, as Markdown."""
    shifted, late = ([result for result in results if result.arm.shift == shift] for shift in (True, False))
    lines = [
        "# The published PPO curve",
        "",
        f"{sum(one.finished for one in results)} of {len(results)} runs finished.",
        f"With the right shift of values {sum(one.passed for one in shifted)} of {len(shifted)} passed; all should.",
        f"Without it {sum(one.passed for one in late)} of {len(late)} passed; none should.",
        f"Overrides: {' '.join(overrides) or 'none'}.",
        "",
        f"| run | state | steps | mean reward, last {WINDOW} steps | last accuracy |",
        "|---|---|---:|---:|---:|",
        *(
            f"| {one.arm.name} | {one.state} | {one.steps} | {_shown(one.reward)} | {_shown(one.accuracy)} |"
            for one in results
        ),
        "",
        "| backend | seed | reward with the shift, less that without |",
        "|---|---:|---:|",
        *(_pair(one, other) for one in shifted for other in late if _twins(one.arm, other.arm)),
    ]
    for one in results:
        lines += ["", f"## {one.arm.name}", "", f"{one.state}.", "", *(f"* {each.sentence}" for each in one.verdicts)]
    return "\n".join(lines) + "\n"


def _twins(one: Arm, other: Arm) -> bool:
    return (one.backend, one.seed) == (other.backend, other.seed)


def _pair(one: Result, other: Result) -> str:
    """A line on the effect of the shift, if both runs have ended."""
    worth = None
    if one.finished and other.finished and one.reward is not None and other.reward is not None:
        worth = one.reward - other.reward
    return f"| {one.arm.backend} | {one.arm.seed} | {_shown(worth)} |"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _files(kit: Kit, arm: Arm) -> Iterator[tuple[str, str]]:
    for file in (kit.folder(arm) / name for name in SENT):
        if file.is_file():
            yield file.name, file.read_text(errors="replace")
    if kit.log(arm).is_file():
        with kit.log(arm).open(errors="replace") as log:
            yield "printed.txt", "".join(deque(log, LAST_LINES))


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    entry = tarfile.TarInfo(f"published_curve/{name}")
    entry.size, entry.mtime = len(content), int(datetime.datetime.now().timestamp())
    archive.addfile(entry, io.BytesIO(content))


def _machine() -> dict[str, Any]:
    """Versions of computing packages, the machine and its GPUs."""
    packages = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    return {
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "lockstep": lockstep.__version__,
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "changed_files": _output("git", "-C", str(ROOT), "status", "--short", "--untracked-files=no"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpus": _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"),
        "packages": {name: packages[name] for name in sorted(packages) if name.startswith(COMPUTING)},
    }


def _output(*command: str) -> str | None:
    """The output of a command; None if the command is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
