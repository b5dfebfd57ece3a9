"""A folder in which everything is in order, and ways to spoil it: what the catalogue of bad inputs begins with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_recipe import RECIPE, REWARDS

from lockstep.models.load import build_causal_lm
from lockstep.models.tokenizer import words_tokenizer
from lockstep.tasks.arithmetic import distinct_problems

MORE_REWARDS = """
import os


def narrow(prompt, response):
    return 1.0


def broken(prompt, response, answer, row):
    return row["level"]


def word(prompt, response, answer, row):
    return "good"


def no_number(prompt, response, answer, row):
    return float("nan")


def hanging(prompt, response, answer, row):
    while True:
        pass


def ending(prompt, response, answer, row):
    os._exit(3)
"""

WORLDS = """
class Broken:
    def reset(self, row, seed):
        self.row = row

    def step(self, response):
        return "", self.row["level"], True


class Stepless:
    def reset(self, row, seed):
        pass


class Needy(Broken):
    def __init__(self, level):
        pass


class Seedless(Broken):
    def reset(self, row):
        pass
"""

SFT = {
    "algorithm": "sft",
    "model": {"path": "model"},
    "data": {"train": "rows.jsonl", "prompt": "{question}\n", "max_prompt_tokens": 64},
    "learner": {"device": "cpu"},
    "sft": {"global_batch_size": 4, "max_tokens": 90},
    "optimizer": {"lr": 0.001},
    "run": {"max_steps": 1, "folder": "run"},
}

DPO = SFT | {
    "algorithm": "dpo",
    "data": {**SFT["data"], "chosen": "{answer}", "rejected": "{question}"},
    "dpo": {"global_batch_size": 4, "max_tokens": 90},
}
DPO.pop("sft")

JUDGED = SFT | {
    "algorithm": "self_rewarding",
    "self_rewarding": {"max_iterations": 2, "global_batch_size": 4, "num_responses_to_gen": 2},
    "judge": {
        "chat": False,
        "template": "{prompt} {response}\n",
        "max_prompt_tokens": 80,
        "unfinished_judgements": "read",
        "sampling": {"max_tokens": 1},
    },
    "sampling": {"max_tokens": 12},
}
JUDGED.pop("sft")


def furnish(folder: Path) -> None:
    """Writes recipes, rewards, rows and a model folder that fit each other."""
    rows = [problem.row() for problem in distinct_problems(24, 0)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS + MORE_REWARDS)
    (folder / "worlds.py").write_text(WORLDS)
    tiny = RECIPE | {"run": {"max_steps": 1, "folder": "run"}, "reward": {"type": "math", "marker": "####"}}
    own = {"model": {"path": "model"}, "data": {**RECIPE["data"], "train": "rows.jsonl"}}
    own["data"].pop("task")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    (folder / "own.yaml").write_text(yaml.safe_dump(tiny | own))
    (folder / "sft.yaml").write_text(yaml.safe_dump(SFT))
    (folder / "dpo.yaml").write_text(yaml.safe_dump(DPO))
    (folder / "judged.yaml").write_text(yaml.safe_dump(JUDGED))
    tokenizer = words_tokenizer(text + "\n" for row in rows for text in row.values())
    build_causal_lm(RECIPE["model"]["scratch"]["config"], tokenizer, 0).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


Spoil = Callable[[Path], object]
"""Makes one thing wrong in a furnished folder."""


def write(name: str, content: str | bytes) -> Spoil:
    content = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(content)


def remove(*names: str) -> Spoil:
    return lambda folder: [(folder / name).unlink() for name in names]


def remove_tree(name: str) -> Spoil:
    return lambda folder: shutil.rmtree(folder / name)


def change(name: str, **fields: object) -> Spoil:
    """Sets fields of a JSON file; None takes one out."""

    def spoil(folder: Path) -> None:
        tree = json.loads((folder / name).read_text()) | fields
        (folder / name).write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))

    return spoil


def add_row(text: str, first: bool = False) -> Spoil:
    def spoil(folder: Path) -> None:
        rows = (folder / "rows.jsonl").read_text()
        (folder / "rows.jsonl").write_text(text + "\n" + rows if first else rows + text + "\n")

    return spoil


def pickled(folder: Path) -> None:
    torch.save({}, folder / "model/pytorch_model.bin")
    (folder / "model/model.safetensors").unlink()


def adapters_only(folder: Path) -> None:
    (folder / "model/config.json").unlink()
    (folder / "model/adapter_config.json").write_text("{}")


def truncated(folder: Path) -> None:
    file = folder / "model/model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def weights(alter: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    """Alters the tensors of the model."""

    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "model/model.safetensors")
        alter(tensors)
        save_file(tensors, folder / "model/model.safetensors", metadata={"format": "pt"})

    return spoil


without_tensor = weights(lambda tensors: tensors.pop("model.norm.weight"))
with_nan = weights(lambda tensors: tensors["model.layers.0.mlp.up_proj.weight"][3].fill_(float("nan")))
with_infinity = weights(lambda tensors: tensors["model.norm.weight"][3].fill_(float("-inf")))
with_a_layer_too_many = weights(
    lambda tensors: tensors.update(
        {name.replace("layers.0", "layers.1"): tensor.clone() for name, tensor in tensors.items() if "layers.0" in name}
    )
)
in_eight_bits = weights(
    lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].to(torch.float8_e4m3fn)})
)


def small_embedding(folder: Path) -> None:
    """Weights and configuration agree with each other, but know fewer tokens than the tokenizer makes."""
    tokenizer = words_tokenizer(["a b"])
    shutil.copytree(folder / "model", folder / "kept")
    shutil.rmtree(folder / "model")
    build_causal_lm(RECIPE["model"]["scratch"]["config"], tokenizer, 0).save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "kept" / name, folder / "model" / name)
    shutil.rmtree(folder / "kept")
