"""Hostile recipes, overrides, and code that recipes name."""

from __future__ import annotations

from hostile import (
    PYTHON_REWARD,
    Hostile,
    algorithm,
    both,
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
TASK = (
    "from lockstep.config.task import Task, TaskFiles\nclass Mine(Task):\n  def write(self, "
    "folder):\n    "
)


RECIPES = {
    "recipe: brackets 5,000 deep": recipe(
        "a: " + "[" * 5000 + "]" * 5000 + "\n", "bad.yaml", "deep"
    ),
    "recipe: a NUL": tiny("seed: \x00 1\n", "bad.yaml", "line 2"),
    "recipe: a byte-order mark": in_order(recipe(b"\xef\xbb\xbfbase: tiny.yaml\n")),
    "recipe: a number of 5,000 digits": tiny(
        "seed: " + "9" * 5000 + "\n", "bad.yaml", "5000 digits"
    ),
    "recipe: a key that is a number": tiny("1: 2\n", "bad.yaml: line 2", "key must be text"),
    "recipe: a key in capitals": tiny("PPO: {clip: 0.1}\n", "bad.yaml", "did you mean ppo"),
    "recipe: escape sequences in a key": tiny(
        '"\\e[2J\\e[31mx": 1\n', "bad.yaml", "unknown option ␛[2J"
    ),
    "recipe: a base that is a list": recipe(
        "base: [tiny.yaml]\n", "bad.yaml", "base must name one recipe"
    ),
    "recipe: a pipe": Hostile("train bad.yaml --dry-run", pipe("bad.yaml"), ("bad.yaml",)),
    "recipe: 4 MB of rows": recipe(
        "".join(f'- {{"question": "a{i}", "answer": "{i}"}}\n' for i in range(100000)),
        "bad.yaml",
        "data go into data.train",
    ),
    "recipe: a section that is null": tiny("ppo: null\n", "ppo"),
    "recipe: an algorithm that is no Algorithm": algorithm("class Mine: pass\n", "mine.py:Mine"),
    "recipe: an algorithm that exits when imported": algorithm(
        "import sys; sys.exit(0)\n", "mine.py", "SystemExit"
    ),
    "recipe: a task that raises": task(
        TASK + "raise KeyError('rows')\n",
        "data.task mine.py:Mine raised KeyError",
        "line 4",
    ),
}

NEW_MODELS = {
    "new model: heads that do not divide": scratch({"hidden_size": 33}, "model.scratch.config"),
    "new model: an activation that is not there": scratch(
        {"hidden_act": "gelo"}, "model.scratch.config", "gelo"
    ),
    "new model: rope without its factor": scratch(
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0}},
        "model.scratch.config",
        "factor",
    ),
    "new model: a padding token beyond the vocabulary": scratch(
        {"pad_token_id": 10**9}, "model.scratch.config"
    ),
    "new model: a vision model": scratch({"model_type": "clip"}, "model.scratch.config"),
}

OVERRIDES = {
    "override: a hub's address": override(
        "data.train=hf://datasets/openai/gsm8k",
        "hf://",
        "is not a hub data set",
        of="own.yaml",
    ),
    "override: a key of 5,000 parts": override("a" + ".a" * 5000 + "=1", "override", "key=value"),
    "override: brackets 5,000 deep": override(
        "acceptance=" + "[" * 5000 + "]" * 5000, "acceptance", "deep"
    ),
    "override: half a UTF-8 character": override(
        "data.train=rows\udcff.jsonl", "override", "U+DCFF"
    ),
    "override: 10^30 steps": override("run.max_steps=" + "1" + "0" * 30, "run.max_steps"),
    "override: a learning rate of 1e-400": override("policy.lr=1e-400", "policy.lr"),
    "override: a field of a field": override(
        "data.prompt='{question.text}'", "question.text", of="own.yaml"
    ),
    "override: a template without a field": override(
        "data.prompt=Hello!", "note", "data.prompt", "uses no", of="own.yaml"
    ),
    "override: a folder in /proc": override("run.folder=/proc/here", "/proc/here", "run.folder"),
}

REWARDS = {
    "reward: a class": reward(
        "class f:\n  def __init__(self, prompt, response, answer, row): pass\n", "mine.py:f"
    ),
    "reward: closes its outputs": reward(
        f"import os\n{F}  os.closerange(3, 200)\n  return 1.0\n",
        "mine.py:f",
        "the same command resumes the run",
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
