"""Hostile arguments of commands and dumps of log-probabilities: what is spoiled, the command, what
it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from workspace import Spoil, write


class Case(NamedTuple):
    """A command in a spoiled folder, its exit code, and text that what it says holds."""

    spoil: Spoil
    command: str
    code: int
    says: str


def nothing(folder: Path) -> None:
    """Spoils nothing."""


PLAN = "plan own.yaml --gpus 2 --memory 80GB"
ANALYZE = "doctor analyze dump.jsonl"
DUMP = write("dump.jsonl", '{"old_log_probs": [-1.0, -2.0], "rollout_log_probs": [-1.0, -1.5]}\n')


def pipe(name: str) -> Spoil:
    return lambda folder: os.mkfifo(folder / name)


RANKED = {"prompt": "p", "responses": ["a", "b"], "ranks": [0, 1]}
ranked = write("ranked.jsonl", json.dumps(RANKED) + "\n")

COMMANDS: dict[str, Case] = {
    "plan: a prime of GPUs": Case(
        nothing, "plan own.yaml --gpus 7919 --memory 80GB", 2, "no layout of 7919"
    ),
    "plan: rates torn": Case(write("r.json", "{"), f"{PLAN} --rates r.json", 2, "r.json"),
    "certify: a place inside of a file": Case(
        nothing, "certify model --count 1 --max-tokens 1 --out tiny.yaml/c.json", 2, "tiny.yaml"
    ),
    "config: a key through a value": Case(
        nothing, "config tiny.yaml ppo.clip.deep", 2, "ppo.clip.deep"
    ),
    "config: an option with half a character": Case(
        nothing, "config tiny.yaml $'x'", 2, "override"
    ),
    "report: into a pipe": Case(pipe("r.html"), "report run --out r.html", 2, "r.html"),
    "report: a name with a NUL": Case(nothing, "report 'run\0x'", 2, "is not a valid path"),
    "doctor: a budget of NaN": Case(nothing, "doctor table model grid.budget_s=.nan", 2, "budget"),
    "doctor: results in a file": Case(
        nothing, "doctor table model --out tiny.yaml", 2, "tiny.yaml"
    ),
    "eval_judge: a server's address without a server": Case(
        ranked,
        "eval http:// ranked.jsonl --recipe eval_judge judge.sampler.openai.model=m",
        2,
        "begin with http://",
    ),
    "nothing": Case(nothing, "''", 2, ""),
}

DUMPS: dict[str, Case] = {
    "dump: one column for both sides": Case(
        DUMP, f"{ANALYZE} --columns train=old_log_probs infer=old_log_probs", 2, "both sides"
    ),
    "dump: names that move the cursor": Case(
        write("dump.jsonl", '{"\\u001b[2J": 1}\n'), ANALYZE, 2, "␛[2J"
    ),
    "dump: a column of no role": Case(DUMP, f"{ANALYZE} --columns critic=x", 2, "critic"),
}

Outcome = Callable[[Path], object]
