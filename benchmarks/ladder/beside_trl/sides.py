"""Runs of one case on both sides: the same first weights and rows, each side in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

from benchmarks.ladder.beside_trl.cases import Case, load_teacher
from benchmarks.ladder.beside_trl.clock import CLOCK
from lockstep.algorithms.base import Algorithm
from lockstep.config.optimizer import Optimizer
from lockstep.data.templates import render
from lockstep.models.heads import first_value_weights
from lockstep.models.tokenizer import load_tokenizer
from lockstep.tasks.base import permute

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "benchmarks.ladder.beside_trl"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "PYTHONPATH": str(ROOT)}


def train_first(case: Case) -> Path:
    """Trains the warm start of a case, and of its teacher, where that has not been done. Returns its folder."""
    first = case.load(0).warm_start
    assert first is not None, f"{case.recipe} has no warm start"
    for loaded in (first, load_teacher()) if case.is_distillation else (first,):
        if not (ROOT / loaded.run_folder / "final").exists():
            _run(Path(sys.executable), "lockstep", "train", *loaded.arguments)
    return ROOT / first.run_folder / "final"


def train_ours(case: Case, seed: int, folder: Path) -> None:
    """Trains by Lockstep."""
    model = train_first(case)
    folder.mkdir(parents=True)
    own = (
        f"model.path={model}", "data.task=null", "data.shuffle=false", f"data.train={_write_rows(case, seed, folder)}",
        f"run.max_steps={case.steps}", f"run.save_every={case.every}", f"run.keep={case.steps}", "run.validate_every=0",
        "run.num_logged_samples=0", f"seed={seed}",
    )  # fmt: skip
    teacher = (f"teachers.taught.path={_teacher()}",) if case.is_distillation else ()
    _run(Path(sys.executable), f"{PACKAGE}.ours", str(folder), case.recipe, *case.options, *own, *teacher)


def train_theirs(case: Case, seed: int, folder: Path, python: Path) -> None:
    """Trains by TRL."""
    model = train_first(case)
    folder.mkdir(parents=True)
    settings = build_settings(case, seed) | {"model": str(model), "rows": str(_write_rows(case, seed, folder))}
    if case.name == "reward_model":
        settings["model"] = str(write_first(case, seed, folder.parent))
    if case.name == "ppo":
        settings["unit"] = str(folder / "unit.safetensors")
        save_file(_first_unit(model, seed, "value"), settings["unit"])
    if case.is_distillation:
        settings["teacher"] = str(_teacher())
    (folder / "settings.json").write_text(json.dumps(settings, indent=1))
    _run(python, f"{PACKAGE}.{case.program}", str(folder))


def build_settings(case: Case, seed: int) -> dict[str, Any]:
    """The settings of TRL's side, from the recipe; the model and the rows are not among them."""
    recipe = case.load(seed).expect(Algorithm)
    optimizers = {role.name: role.optimizer for role in recipe.models if isinstance(role.optimizer, Optimizer)}
    policy = optimizers.get("policy") or optimizers["reward_model"]
    critic = {"critic_lr": optimizers["critic"].lr} if "critic" in optimizers else {}
    return critic | {
        "algorithm": case.name.split(",")[0], "seed": seed, "steps": case.steps, "every": case.every,
        "batch": case.batch, "lr": policy.lr, "betas": policy.betas, "eps": policy.eps,
        "weight_decay": policy.weight_decay, "max_grad_norm": policy.max_grad_norm, "trl": dict(case.trl),
    }  # fmt: skip


def write_first(case: Case, seed: int, out: Path) -> Path:
    """Returns the folder of the first weights, which is written where a reward model's unit is new."""
    model, folder = train_first(case), out / f"{case.name}-{seed}-first"
    if case.name != "reward_model":
        return model
    return folder if folder.exists() else _with_unit(model, seed, folder)


def read_clock(folder: Path) -> tuple[str, list[float]]:
    """Reads the program of a run, and CPU seconds at the end of each step."""
    found = json.loads((folder / CLOCK).read_text())
    return found["program"], found["cpu_s"]


def _write_rows(case: Case, seed: int, folder: Path) -> Path:
    """Writes the rows of a run in the order in which both sides take them: passes, each in an order of its own."""
    loaded = case.load(seed)
    data, path = loaded.training.data, folder / "rows.jsonl"
    assert data.task is not None
    files = data.task.write(folder / "task")
    lines = (files.demonstrations or files.train).read_text().splitlines()
    with path.open("w") as file:
        for row in _in_order([json.loads(line) for line in lines], case.steps * case.rows, seed):
            prompt = render(data.prompt, row, "a row")
            file.write(json.dumps({**row, "prompt": prompt, "completion": row["answer"]}) + "\n")
    return path


def _in_order(rows: list[dict[str, Any]], count: int, seed: int) -> Iterator[dict[str, Any]]:
    orders = (permute(len(rows), seed, "beside TRL", turn) for turn in range(-(-count // len(rows))))
    return (rows[index] for index in islice(chain.from_iterable(orders), count))


def _teacher() -> Path:
    return ROOT / load_teacher().run_folder / "final"


def _first_unit(model: Path, seed: int, head: Any) -> dict[str, torch.Tensor]:
    """The first weights that Lockstep gives the unit of a value or reward head."""
    size = int(json.loads((model / "config.json").read_text())["hidden_size"])
    return {name.removeprefix("value."): tensor for name, tensor in first_value_weights(size, seed, head).items()}


def _with_unit(model: Path, seed: int, folder: Path) -> Path:
    """Writes the warm start as a reward model whose unit has Lockstep's first weights."""
    classifier = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
    tokenizer = load_tokenizer(model)
    classifier.load_state_dict({"score.weight": _first_unit(model, seed, "reward")["weight"]}, strict=False)
    classifier.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _run(python: Path, module: str, *options: str) -> None:
    command = [str(python), "-m", module, *options]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
