"""Hostile run folders and results: a finished run of two steps with one thing wrong, a command, and
what it says.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from row_files import read_rows
from safetensors.torch import load_file, save_file
from workspace import Spoil, write

RUN = "train tiny.yaml run.max_steps=3 run.save_every=1 run.keep=3"
REPORT = "report run"
EVAL = "eval model rows.jsonl --recipe eval.yaml --out out"
NEWEST = "run/checkpoints/step_000002"


class Case(NamedTuple):
    """A command in a spoiled folder, its exit code, and text that what it says holds."""

    spoil: Spoil
    command: str
    code: int
    says: str


def replace(name: str, make: Callable[[Path], object]) -> Spoil:
    """Puts something else in the place of a file or folder."""

    def spoil(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return spoil


def unfinished(*spoils: Spoil) -> Spoil:
    """The run as if its newest step were still to be done."""

    def spoil(folder: Path) -> None:
        for path in ("run/final", "run/checkpoints/step_000003"):
            shutil.rmtree(folder / path)
        for one in spoils:
            one(folder)

    return spoil


def line(name: str, number: int, row: Any) -> Spoil:
    """Puts another line in the place of one of a log: fields besides its own, or bytes."""

    def spoil(folder: Path) -> None:
        path = folder / name
        lines = path.read_bytes().splitlines(keepends=True)
        old = json.loads(lines[number])
        lines[number] = row if isinstance(row, bytes) else json.dumps(old | row).encode() + b"\n"
        path.write_bytes(b"".join(lines))

    return spoil


def token(**columns: Any) -> Spoil:
    """Changes columns of the tokens of the first sample."""

    def spoil(folder: Path) -> None:
        rows = read_rows(folder / "run/samples.jsonl")
        number = next(number for number, row in enumerate(rows) if "token" in row)
        line("run/samples.jsonl", number, {"token": rows[number]["token"] | columns})(folder)

    return spoil


def resealed(
    alter: Callable[[dict[str, Any]], object], spoil: Spoil = lambda folder: None
) -> Spoil:
    """A checkpoint whose manifest is changed, sums and all: one of another program, not one that
    was damaged.
    """

    def apply(folder: Path) -> None:
        spoil(folder)
        path = folder / NEWEST / "manifest.json"
        noted = json.loads(path.read_text())
        noted.pop("sha256")
        for name in noted["files"]:
            content = (folder / NEWEST / name).read_bytes()
            noted["files"][name] = {
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        alter(noted)
        digest = hashlib.sha256(json.dumps(noted, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({**noted, "sha256": digest}))

    return apply


def other_weights(folder: Path) -> None:
    [path] = (folder / NEWEST / "policy").glob("model*.safetensors")
    save_file({name: tensor[:1].clone() for name, tensor in load_file(path).items()}, path)


def add(name: str, content: bytes) -> Spoil:
    """Appends to a file."""

    def spoil(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(content)

    return spoil


def only_the_newest(spoil: Spoil) -> Spoil:
    return unfinished(lambda folder: shutil.rmtree(folder / "run/checkpoints/step_000001"), spoil)


def begun(spoil: Spoil) -> Spoil:
    """The evaluation as if it were still to be ended."""

    def apply(folder: Path) -> None:
        (folder / "out/results.json").unlink()
        spoil(folder)

    return apply


DEEP = b"[" * 100_000 + b"\n"
METRICS, SAMPLES, TIMINGS = "run/metrics.jsonl", "run/samples.jsonl", "run/timings.jsonl"
NO_LINE = "is not a valid log line"
PASSED = "is skipped"

CASES: dict[str, Case] = {
    # metrics.jsonl
    "metrics: deep brackets, report": Case(
        line(METRICS, 1, DEEP), REPORT, 2, "metrics.jsonl:2 " + NO_LINE
    ),
    "metrics: NUL bytes at the end": Case(
        unfinished(add(METRICS, b"\0" * 4096)), RUN, 0, "resumes after step 2"
    ),
    "metrics: a word, resume": Case(
        unfinished(line(METRICS, 1, {"train/reward": "high"})),
        RUN,
        2,
        "metrics.jsonl differs from what the run wrote",
    ),
    "metrics: agreement without its bound": Case(
        line(METRICS, 1, b'{"step": 1, "agreement/tokens": 5}\n'), REPORT, 0, "report.html"
    ),
    "metrics: a pipe, report": Case(replace(METRICS, os.mkfifo), REPORT, 2, "metrics.jsonl"),
    "metrics: a name that is a page": Case(
        line(METRICS, 1, {"</script><script>alert(1)</script>": 1.0}), REPORT, 0, "report.html"
    ),
    # samples.jsonl
    "samples: no columns of tokens": Case(
        line(SAMPLES, 0, {"token": None}), REPORT, 0, "report.html"
    ),
    "samples: a column too short": Case(token(logprob=[-1.0]), REPORT, 2, "samples.jsonl"),
    "timings: a word": Case(line(TIMINGS, 0, {"generate": "long"}), REPORT, 2, "timings.jsonl:1"),
    "certificate: torn": Case(
        write("run/certificate.json", '{"step": 2, "lev'), REPORT, 2, "certificate.json"
    ),
    "certificate: a folder, resume": Case(
        unfinished(replace("run/certificate.json", Path.mkdir)), RUN, 2, "certificate.json"
    ),
    # environment.json, crash.txt, recipe.yaml
    "environment: torn, resume": Case(
        unfinished(write("run/environment.json", "{")), RUN, 2, "environment.json"
    ),
    "crash.txt: a folder": Case(
        unfinished(lambda folder: (folder / "run/crash.txt").mkdir()),
        REPORT,
        2,
        "run/crash.txt is a folder",
    ),
    "recipe: of a later version": Case(
        add("run/recipe.yaml", b"tomorrow: 1\n"), "check run", 2, "run/recipe.yaml"
    ),
    # checkpoints
    "checkpoints: a file": Case(
        unfinished(replace("run/checkpoints", lambda path: path.write_text(""))),
        RUN,
        2,
        "checkpoints",
    ),
    "checkpoints: a step of 40 digits": Case(
        unfinished(lambda folder: (folder / f"run/checkpoints/step_{10**39}").mkdir()),
        RUN,
        0,
        PASSED,
    ),
    "checkpoints: a state without position": Case(
        unfinished(resealed(lambda noted: noted["state"].pop("position"))), RUN, 2, "manifest.json"
    ),
    "checkpoints: a file outside of it": Case(
        unfinished(resealed(lambda noted: noted["files"].update({"../../../tiny.yaml": {}}))),
        RUN,
        0,
        PASSED,
    ),
    "checkpoints: a score of a word": Case(
        unfinished(resealed(lambda noted: noted.update(score="best"))),
        "export run made --checkpoint best",
        2,
        "has a score",
    ),
    "checkpoints: no policy": Case(
        only_the_newest(
            resealed(
                lambda noted: noted.update(
                    files={k: v for k, v in noted["files"].items() if "policy" not in k}
                ),
                lambda folder: None,
            )
        ),
        RUN,
        1,
        "damaged",
    ),
    "checkpoints: a policy of another shape": Case(
        unfinished(resealed(lambda noted: None, other_weights)), RUN, 2, "policy"
    ),
    "export: initial/ gone": Case(
        lambda folder: shutil.rmtree(folder / "run/initial"), "export run made", 2, "initial"
    ),
    "eval: final/ without weights": Case(
        lambda folder: (folder / "run/final/model.safetensors").unlink(),
        "eval run rows.jsonl --recipe eval.yaml",
        2,
        "model.safetensors is missing",
    ),
    # results
    "eval: inputs.json torn": Case(write("out/inputs.json", "{"), EVAL, 2, "inputs.json"),
    "eval: samples.jsonl a pipe": Case(
        begun(replace("out/samples.jsonl", os.mkfifo)), EVAL, 2, "samples.jsonl"
    ),
    "eval: a score of a word": Case(
        begun(line("out/samples.jsonl", 0, {"score": "good"})), EVAL, 2, "samples.jsonl:1"
    ),
    # the folder
    "run: a link to a file": Case(
        replace("run", lambda path: path.symlink_to("tiny.yaml")), RUN, 2, "run"
    ),
    "run: its lock a pipe": Case(unfinished(replace("run/.lock", os.mkfifo)), RUN, 2, ".lock"),
    "run: initial/ torn, resume": Case(
        unfinished(write("run/initial/config.json", "{")), RUN, 2, "config.json"
    ),
    "run: initial/ weights gone, resume": Case(
        unfinished(lambda folder: (folder / "run/initial/model.safetensors").unlink()),
        RUN,
        2,
        "initial",
    ),
    "run: data changed": Case(unfinished(add("run/data/train.jsonl", b"{}\n")), RUN, 0, "run: run"),
}
