"""Hostile arguments of commands and dumps of log-probabilities: what is spoiled, the command, what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
ROW: dict[str, Any] = {"old_log_probs": [-1.0] * 4, "rollout_log_probs": [-1.0, -1.5, -0.5, -2.0]}
DEEP = "[" * 100_000


def dump(*rows: dict[str, Any]) -> Spoil:
    """Two right rows, and then these, which may lack or change columns."""
    lines = [json.dumps(row) + "\n" for row in (ROW, ROW, *(ROW | row for row in rows))]
    return lambda folder: (folder / "dump.jsonl").write_text("".join(lines))


def every(**fields: Any) -> Spoil:
    """Three rows, all with these fields."""
    return lambda folder: (folder / "dump.jsonl").write_text((json.dumps(ROW | fields) + "\n") * 3)


def pipe(name: str) -> Spoil:
    return lambda folder: os.mkfifo(folder / name)


def make(name: str) -> Spoil:
    return lambda folder: (folder / name).mkdir()


def both(*spoils: Spoil) -> Spoil:
    return lambda folder: [spoil(folder) for spoil in spoils]


RANKED = {"prompt": "p", "responses": ["a", "b"], "ranks": [0, 1]}
ranked = write("ranked.jsonl", json.dumps(RANKED) + "\n")

COMMANDS: dict[str, Case] = {
    "plan: no memory": Case(nothing, "plan own.yaml --gpus 1 --memory 0.0GB", 2, "--memory"),
    "plan: a prime of GPUs": Case(nothing, "plan own.yaml --gpus 7919 --memory 80GB", 2, "no layout of 7919"),
    "plan: a configuration of a list": Case(write("c.json", "[]"), f"{PLAN} --config c.json", 2, "c.json"),
    "plan: rates torn": Case(write("r.json", "{"), f"{PLAN} --rates r.json", 2, "r.json"),
    "certify: prompts that are no text": Case(
        write("p.txt", b"\xff\xfe\x00"), "certify model --prompts p.txt --count 1 --max-tokens 2", 2, "p.txt"
    ),
    "certify: no prompts": Case(write("p.txt", "\n\n"), "certify model --prompts p.txt --count 1", 2, "p.txt"),
    "certify: a seed of 40 digits": Case(
        nothing, f"certify model --count 1 --max-tokens 2 --seed {10**40} --prompts gone.txt", 2, "gone.txt"
    ),
    "certify: a place inside of a file": Case(
        nothing, "certify model --count 1 --max-tokens 1 --out tiny.yaml/c.json", 2, "tiny.yaml"
    ),
    "schema: into a folder": Case(nothing, "schema ppo --out model", 2, "model"),
    "schema: into a folder that is not there": Case(nothing, "schema ppo --out gone/schema.json", 2, "gone"),
    "schema: into a pipe": Case(pipe("schema.json"), "schema ppo --out schema.json", 2, "schema.json"),
    "config: a key through a value": Case(nothing, "config tiny.yaml ppo.clip.deep", 2, "ppo.clip.deep"),
    "config: an option with half a character": Case(nothing, "config tiny.yaml $'x'", 2, "override"),
    "config: a recipe that is a pipe": Case(pipe("r.yaml"), "config r.yaml", 2, "r.yaml"),
    "report: into a folder that is not there": Case(nothing, "report run --out gone/r.html", 2, "gone"),
    "report: into a pipe": Case(pipe("r.html"), "report run --out r.html", 2, "r.html"),
    "report: a name with a NUL": Case(nothing, "report 'run\0x'", 2, "is no path"),
    "watch: a port below 0": Case(nothing, "watch run --port=-1", 2, "port -1"),
    "doctor: a budget of NaN": Case(nothing, "doctor table model grid.budget_s=.nan", 2, "budget"),
    "doctor: results in a file": Case(nothing, "doctor table model --out tiny.yaml", 2, "tiny.yaml"),
    "eval_judge: a server's address without a server": Case(
        ranked, "eval http:// ranked.jsonl --recipe eval_judge judge.sampler.openai.model=m", 2, "begins with http://"
    ),
    "eval_judge: an address of another kind": Case(
        nothing,
        "eval ftp://localhost/v1 rows.jsonl --recipe eval_judge judge.sampler.openai.model=m",
        2,
        "is an address",
    ),
    "nothing": Case(nothing, "''", 2, ""),
}

DUMPS: dict[str, Case] = {
    "dump: empty": Case(write("dump.jsonl", ""), ANALYZE, 2, "dump.jsonl"),
    "dump: of torch": Case(write("dump.pt", b"PK\x03\x04" + b"\0" * 99), "doctor analyze dump.pt", 2, "dump.pt"),
    "dump: safetensors": Case(nothing, "doctor analyze model/model.safetensors", 2, "model.safetensors"),
    "dump: a torn table": Case(write("d.parquet", b"PAR1torn"), "doctor analyze d.parquet", 2, "d.parquet"),
    "dump: a number of 400 digits": Case(dump({"old_log_probs": [-(10**400)] * 4}), ANALYZE, 2, "line 3"),
    "dump: NaN in the mask": Case(every(mask=[1, float("nan"), 1, 1]), ANALYZE, 2, "line 1"),
    "dump: words in the mask": Case(every(mask=["yes"] * 4), ANALYZE, 2, "line 1"),
    "dump: ids below 0": Case(every(input_ids=[-7, 2, 3, 4]), ANALYZE, 2, "line 1"),
    "dump: a temperature below 0": Case(every(temperature=-1.0), ANALYZE, 2, "temperature"),
    "dump: a prompt longer than its row": Case(every(prompt_length=99), ANALYZE, 2, "prompt_length"),
    "dump: one column for both sides": Case(
        dump(), f"{ANALYZE} --columns train=old_log_probs infer=old_log_probs", 2, "both sides"
    ),
    "dump: no column has a name": Case(write("dump.jsonl", "{}\n"), ANALYZE, 2, "--columns"),
    "dump: a line of brackets": Case(write("dump.jsonl", DEEP + "\n"), ANALYZE, 2, "line 1"),
    "dump: names that move the cursor": Case(write("dump.jsonl", '{"\\u001b[2J": 1}\n'), ANALYZE, 2, "␛[2J"),
    "dump: a column without a name": Case(dump(), f"{ANALYZE} --columns train", 2, "ROLE=NAME"),
    "dump: a column of no role": Case(dump(), f"{ANALYZE} --columns critic=x", 2, "critic"),
}

Outcome = Callable[[Path], object]
