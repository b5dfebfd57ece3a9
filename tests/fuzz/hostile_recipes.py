"""Hostile recipes, overrides, and code that recipes name."""

from __future__ import annotations

import struct
from pathlib import Path

from hostile import (
    PYTHON_REWARD,
    Hostile,
    algorithm,
    both,
    found_early,
    in_order,
    override,
    pipe,
    recipe,
    reward,
    scratch,
    task,
    tiny,
)
from workspace import write

F = "def f(prompt, response, answer, row):\n"
TASK = "from lockstep.config.task import Task, TaskFiles\nclass Mine(Task):\n  def write(self, folder):\n    "


def chain(folder: Path) -> None:
    for number in range(1500):
        (folder / f"b{number}.yaml").write_text(f"base: b{number + 1}.yaml\n")
    (folder / "b1500.yaml").write_text("base: tiny.yaml\n")


RECIPES = {
    "recipe: brackets 5,000 deep": recipe("a: " + "[" * 5000 + "]" * 5000 + "\n", "bad.yaml", "deep"),
    "recipe: mappings 3,000 deep": recipe("".join("{a: " for _ in range(3000)) + "1" + "}" * 3000, "bad.yaml", "deep"),
    "recipe: aliases ten-fold, ten times": recipe(
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)),
        "bad.yaml: line",
        "aliases",
    ),
    "recipe: an alias of itself": recipe("base: tiny.yaml\nacceptance: &a [*a]\n", "bad.yaml", "alias"),
    "recipe: a merge key": tiny("x: &x {clip: 0.1}\nppo:\n  <<: *x\n", "bad.yaml: line", "<<"),
    "recipe: two documents": tiny("---\nseed: 1\n", "bad.yaml: line 2", "document"),
    "recipe: a NUL": tiny("seed: \x00 1\n", "bad.yaml", "line 2"),
    "recipe: UTF-16": recipe("base: tiny.yaml\n".encode("utf-16"), "bad.yaml", "UTF-8"),
    "recipe: a byte-order mark": in_order(recipe(b"\xef\xbb\xbfbase: tiny.yaml\n")),
    "recipe: line ends of Windows": in_order(recipe(b"base: tiny.yaml\r\nseed: 3\r\n")),
    "recipe: a number of 5,000 digits": tiny("seed: " + "9" * 5000 + "\n", "bad.yaml: line 2", "5,000 digits"),
    "recipe: 1e999": tiny("policy: {lr: 1e999}\n", "policy.lr", "finite"),
    "recipe: a key that is a number": tiny("1: 2\n", "bad.yaml: line 2", "key must be text"),
    "recipe: a key of two lines in a mapping": tiny("? {a: 1}\n: 2\n", "bad.yaml: line 2", "key must be text"),
    "recipe: an empty key": tiny('"": 1\n', "bad.yaml", "no option ''"),
    "recipe: flat keys": tiny("ppo.clip: 0.1\n", "bad.yaml", "ppo: {clip"),
    "recipe: a key in capitals": tiny("PPO: {clip: 0.1}\n", "bad.yaml", "did you mean ppo"),
    "recipe: half a surrogate": tiny('data: {prompt: "\\ud800 {question}"}\n', "bad.yaml: line 2", "surrogate"),
    "recipe: escape sequences in a key": tiny('"\\e[2J\\e[31mx": 1\n', "bad.yaml", "no option ␛[2J"),
    "recipe: an escape sequence in a value": tiny('ppo: {clip: "\\e[2J"}\n', "bad.yaml", "ppo.clip"),
    "recipe: a base that is a list": recipe("base: [tiny.yaml]\n", "bad.yaml", "base must name one recipe"),
    "recipe: a base that is empty": recipe('base: ""\n', "bad.yaml", "base", "names no recipe"),
    "recipe: a base that is this folder": recipe("base: ./\n", "bad.yaml", "folder"),
    "recipe: a chain of 1,500 bases": Hostile("train b0.yaml --dry-run", chain, ("base",)),
    "recipe: a pipe": Hostile("train bad.yaml --dry-run", pipe("bad.yaml"), ("bad.yaml",)),
    "recipe: a link to itself": Hostile(
        "train bad.yaml --dry-run", lambda folder: (folder / "bad.yaml").symlink_to("bad.yaml"), ("bad.yaml",)
    ),
    "recipe: 4 MB of rows": recipe(
        "".join(f'- {{"question": "a{i}", "answer": "{i}"}}\n' for i in range(100000)),
        "bad.yaml",
        "data go into data.train",
    ),
    "recipe: weights under its name": recipe(struct.pack("<Q", 40) + b"{}" + bytes(range(256)) * 40, "bad.yaml"),
    "recipe: a section that is null": tiny("ppo: null\n", "ppo"),
    "recipe: data that are null": tiny("data: null\n", "data"),
    "recipe: an algorithm that is a list": tiny("algorithm: [ppo]\n", "algorithm"),
    "recipe: an algorithm in a missing file": tiny('algorithm: "mine.py:Mine"\n', "mine.py"),
    "recipe: an algorithm that is no Algorithm": algorithm("class Mine: pass\n", "mine.py:Mine"),
    "recipe: an algorithm that exits when imported": algorithm("import sys; sys.exit(0)\n", "mine.py", "SystemExit"),
    "recipe: an algorithm with a syntax error": algorithm("class Mine(:\n", "mine.py"),
    "recipe: an algorithm whose file has a NUL": algorithm("x = 1\x00\n", "mine.py"),
    "recipe: an algorithm that is an instance": algorithm(
        "class A:\n  def __call__(self): pass\nMine = A()\n", "mine.py:Mine"
    ),
    "recipe: a task that is no Task": task("class Mine: pass\n", "mine.py:Mine"),
    "recipe: a task that exits when imported": task("raise SystemExit(0)\n", "mine.py", "SystemExit"),
    "recipe: a task that writes nothing": task(
        TASK + "return TaskFiles.name_in(folder)\n", "data.task mine.py:Mine", "train.jsonl"
    ),
    "recipe: a task that raises": task(
        TASK + "raise KeyError('rows')\n",
        "data.task mine.py:Mine raised KeyError",
        "line 4",
    ),
    "recipe: a task that returns None": task(
        TASK + "return None\n",
        "data.task mine.py:Mine",
        "NoneType",
    ),
}

NEW_MODELS = {
    "new model: no heads": scratch({"num_attention_heads": 0}, "model.scratch.config", "num_attention_heads"),
    "new model: heads that do not divide": scratch({"hidden_size": 33}, "model.scratch.config"),
    "new model: no width": scratch({"hidden_size": 0}, "model.scratch.config", "hidden_size"),
    "new model: no layers": scratch({"num_hidden_layers": 0}, "model.scratch.config", "num_hidden_layers"),
    "new model: minus one layer": scratch({"num_hidden_layers": -1}, "model.scratch.config", "num_hidden_layers"),
    "new model: no context": scratch({"max_position_embeddings": 0}, "max_position_embeddings"),
    "new model: an activation that is not there": scratch(
        {"hidden_act": "gelo"}, "model.scratch.config", "hidden_act", "gelo"
    ),
    "new model: an epsilon below zero": scratch({"rms_norm_eps": -1.0}, "model.scratch.config", "rms_norm_eps"),
    "new model: a deviation of weights below zero": scratch(
        {"initializer_range": -1.0}, "model.scratch.config", "0.0", "-1.0"
    ),
    "new model: dropout": in_order(scratch({"attention_dropout": 0.5})),
    "new model: rope of base 0": scratch({"rope_theta": 0.0}, "model.scratch.config", "rope_theta"),
    "new model: a rope type that is not there": scratch(
        {"rope_parameters": {"rope_type": "nosuch", "rope_theta": 10000.0}},
        "model.scratch.config",
        "rope_type",
        "nosuch",
    ),
    "new model: rope without its factor": scratch(
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0}}, "model.scratch.config", "factor"
    ),
    "new model: odd heads": scratch({"head_dim": 7}, "model.scratch.config", "head_dim"),
    "new model: a padding token beyond the vocabulary": scratch(
        {"pad_token_id": 10**9}, "model.scratch.config", "pad_token_id"
    ),
    "new model: layer types of another count": scratch(
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 3}, "model.scratch.config", "layer_types"
    ),
    "new model: outputs as tuples": scratch({"return_dict": False}, "model.scratch.config", "return_dict"),
    "new model: a type that is a list": scratch({"model_type": ["llama"]}, "model.scratch.config", "model_type"),
    "new model: a vision model": scratch({"model_type": "clip"}, "model.scratch.config"),
}

OVERRIDES = {
    "override: a hub's address": override(
        "data.train=hf://datasets/openai/gsm8k", "hf://", "names no file of a data set on the hub", of="own.yaml"
    ),
    "override: a folder's name of 5,000 letters": override("run.folder=" + "x" * 5000, "run.folder", "long"),
    "override: no key": override("=1", "override", "key=value"),
    "override: a dot too many": override("ppo..clip=0.1", "ppo..clip", "key=value"),
    "override: a dot at the end": override("ppo.=1", "override", "key=value"),
    "override: two equal signs": override("ppo.clip==0.1", "ppo.clip", "number"),
    "override: two in one word": override("ppo.clip=0.1 ppo.gamma=1", "ppo.clip", "number"),
    "override: a key of 5,000 parts": override("a" + ".a" * 5000 + "=1", "override", "no option"),
    "override: brackets 5,000 deep": override("acceptance=" + "[" * 5000 + "]" * 5000, "acceptance", "deep"),
    "override: an alias of itself": override("acceptance=&a [*a]", "acceptance", "alias"),
    "override: half a UTF-8 character": override("data.train=rows\udcff.jsonl", "override", "U+DCFF"),
    "override: half a character in text": override('data.prompt="\udcff{question}"', "data.prompt", "U+DCFF"),
    "override: a base": override("base=ppo_gsm8k", "base"),
    "override: an item of a list": override("acceptance.0.min=3", "acceptance"),
    "override: a scalar and an option of the section": override(["ppo=3", "ppo.clip=0.1"], "ppo"),
    "override: an index that is no number": override("policy.betas.first=0.9", "policy.betas"),
    "override: three betas": override("policy.betas=[0.9,0.95,0.99]", "policy.betas"),
    "override: no betas": override("policy.betas=0.9", "policy.betas", "list"),
    "override: digits of another script": override("ppo.clip=０.１", "ppo.clip", "number"),
    "override: a number with underscores": override("run.max_steps=1_000", "run.max_steps", "whole number"),
    "override: 10^30 steps": override("run.max_steps=" + "1" + "0" * 30, "run.max_steps"),
    "override: 10^18 prompts a step": override("ppo.num_prompts_per_step=1" + "0" * 18, "ppo.num_prompts_per_step"),
    "override: 10^6 ranks": override("learner.parallel.dp=1000000", "learner.parallel.dp", "less than or equal to"),
    "override: 10^12 tokens of a response": override("sampling.max_tokens=1000000000000", "sampling.max_tokens"),
    "override: a seed beyond 64 bits": in_order(override("seed=" + "9" * 30)),
    "override: a negative seed": in_order(override("seed=-1")),
    "override: a learning rate of 1e-400": override("policy.lr=1e-400", "policy.lr"),
    "override: no files": override("data.train=[]", "data.train", of="own.yaml"),
    "override: files that are numbers": override("data.train=[1,2]", "data.train", of="own.yaml"),
    "override: a URL": override(
        "data.train='https://example.com/rows.jsonl'", "https://example.com", "is an address", of="own.yaml"
    ),
    "override: a pattern of files": override("data.train=*.jsonl", "*.jsonl", of="own.yaml"),
    "override: a space behind a name": override("data.train='rows.jsonl '", "rows.jsonl ", of="own.yaml"),
    "override: a field by its number": override("data.prompt='{0}'", "field '0'", of="own.yaml"),
    "override: a field of a field": override("data.prompt='{question.text}'", "question.text", of="own.yaml"),
    "override: a field with a conversion": override("data.prompt='\"{question!r}\"'", "plain fields", of="own.yaml"),
    "override: a template without a field": override(
        "data.prompt=Hello", "note", "data.prompt", "names no", of="own.yaml"
    ),
    "override: a folder in /proc": override("run.folder=/proc/here", "/proc/here", "run.folder"),
    "override: a folder under /dev/null": override("run.folder=/dev/null/run", "run folder"),
    "override: this folder": override("run.folder=.", "choose a new"),
    "override: a weight below zero": override(
        ["data.train=[rows.jsonl, sft.yaml]", "data.weights=[1,-1]"], "data.weights", of="own.yaml"
    ),
    "override: a wrong dash": override("--ppo.clip", "ppo.clip"),
    "override: a reward as a word": override("reward=math", "reward", "group of options"),
    "override: a context of nothing": override("data.max_prompt_tokens=0", "data.max_prompt_tokens"),
    "override: a plan with overrides of no memory": Hostile(
        "plan tiny.yaml --gpus 2 --memory nanGB", None, ("--memory",)
    ),
    "override: a plan of 10^9 GPUs": Hostile("plan tiny.yaml --gpus 1000000000 --memory 80GB", None, ("--gpus",)),
    "override: a plan of much memory": Hostile(
        "plan tiny.yaml --gpus 2 --memory " + "9" * 400 + "GB", None, ("--memory",)
    ),
}

REWARDS = {
    "reward: a syntax error": found_early("def f(:\n", "mine.py"),
    "reward: exits when imported": found_early("raise SystemExit(0)\n", "mine.py"),
    "reward: interrupts when imported": found_early("raise KeyboardInterrupt\n", "mine.py:f", "ended the process"),
    "reward: bytes that are no UTF-8": found_early(b"x = '\xff'\n".decode("latin1").encode("latin1"), "mine.py"),
    "reward: a generator": reward(F + "  yield 1.0\n", "mine.py:f"),
    "reward: a class": reward("class f:\n  def __init__(self, prompt, response, answer, row): pass\n", "mine.py:f"),
    "reward: a truth value of numpy": reward(
        "import numpy\n" + F + "  return numpy.bool_(len(response) % 2)\n", "mine.py:f"
    ),
    "reward: a tensor": reward("import torch\n" + F + "  return torch.tensor([1.0, 2.0])\n", "mine.py:f"),
    "reward: 10^400": reward(F + "  return 10**400\n", "mine.py:f", "finite number"),
    "reward: an exception without words": reward(
        "class E(Exception):\n  def __str__(self): raise ValueError('x')\n" + F + "  raise E\n",
        "mine.py:f",
        "raised E",
        "text cannot be had",
    ),
    "reward: an exit": reward(F + "  raise SystemExit(0)\n", "mine.py:f"),
    "reward: recursion": reward(F + "  return f(prompt, response, answer, row)\n", "mine.py:f"),
    "reward: closes its outputs": reward(
        f"import os\n{F}  os.closerange(3, 200)\n  return 1.0\n",
        "mine.py:f",
        "the same command resumes the run",
    ),
    "reward: a name of Python": found_early("x = 1\n", "mine.py", name="mine.py:__name__"),
    "reward: a folder": found_early("x = 1\n", "model cannot be imported", name="model:f"),
    "reward: an object that lies about its kind": reward(
        "import numbers\nclass N(float):\n  def __float__(self): raise KeyError('no')\n" + F + "  return N(1)\n",
        "mine.py:f",
    ),
    "reward: a module beside it of Python's name": in_order(
        Hostile(
            f"train own.yaml {PYTHON_REWARD}=mine.py:f",
            both(
                write("mine.py", F + "  return float(len(response) % 2)\n"),
                write("queue.py", "raise RuntimeError('shadow')\n"),
                write("json.py", "raise RuntimeError('shadow')\n"),
            ),
            (),
        )
    ),
}
