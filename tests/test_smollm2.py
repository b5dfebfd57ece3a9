"""The recipes of a real instruct model: each starts with a small one; GRPO learns (`make proofs`)."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_rows import CHAT
from row_files import read_rows

from lockstep.config.loading import load_recipe
from lockstep.report.log import read_metrics
from lockstep.run.dry_run.dry_run import dry_run
from lockstep.run.train import train_recipe

EXAMPLES = Path(__file__).parents[1] / "examples"
RECIPES = ("grpo", "ppo", "sft", "dpo", "reward", "distill")


def write_tree(reply: str, number: int) -> dict[str, Any]:
    """A question with two ranked answers."""
    replies = [
        {"text": f"{text} {number}", "role": "assistant", "rank": rank, "replies": []}
        for rank, text in enumerate((reply, "No."))
    ]
    asked = {"text": f"Who is there, {number}?", "role": "prompter", "replies": replies}
    return {"prompt": asked}


@pytest.fixture
def workplace(assets: Path, in_tmp: Path) -> Path:
    """A folder with rows, a small model with a chat template, and a student of it."""
    trees = [json.dumps(write_tree("A cat.", number)) for number in range(64)]
    Path("trees.jsonl").write_text("\n".join(trees))
    shutil.copytree(assets / "models/stories260K/hf", "model")
    Path("model/chat_template.jinja").write_text(CHAT)
    for program in (
        ["oasst_rows.py", "trees.jsonl"],
        ["half_layers.py", "model", "student"],
        ["sentence_pairs.py", "model", "2", "2"],
    ):
        subprocess.run([sys.executable, EXAMPLES / program[0], *program[1:]], check=True)
    return in_tmp


def write_sentence_pairs() -> None:
    """Files of pairs from responses with verdicts, which the small model itself never earns."""
    build_pairs = runpy.run_path(str(EXAMPLES / "sentence_pairs.py"))["build_pairs"]
    samples = [
        {"question": n, "response": text, "score": text == "Yes.", "truncated": text == "No"}
        for n in range(32)
        for text in ("No", "No.", "Yes.")[: 2 + n % 2]
    ]
    pairs = list(build_pairs(read_rows("train.jsonl"), samples))
    assert (pairs[0]["chosen"], pairs[0]["rejected"], len(pairs)) == ("Yes.", "No.", 16)
    for start in ("", "held_out_"):
        Path(f"{start}sentence_pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))


@pytest.mark.usefixtures("workplace")
def test_recipes_of_real_model_can_start_with_small_model() -> None:
    pair = read_rows("pairs.jsonl")[0]
    assert (pair["chosen"], pair["rejected"]) == ("A cat. 1", "No. 1")
    assert len(read_rows("talks.jsonl")) == 3 * len(read_rows("held_out_talks.jsonl")) == 48
    layers = [json.loads(Path(f"{name}/config.json").read_text()) for name in ("model", "student")]
    assert [config["num_hidden_layers"] for config in layers] == [5, 3]
    write_sentence_pairs()
    for recipe in RECIPES:
        model = "teacher.path=model" if recipe == "distill" else "model.path=model"
        loaded = load_recipe(f"{recipe}_smollm2", [model, "data.max_prompt_tokens=256"])
        assert f"{recipe}_smollm2 can start" in dry_run(loaded)


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_grpo_learns_sentences_on_real_model_beyond_its_interval(
    real_model: Path, in_tmp: Path
) -> None:
    short = ("run.max_steps=8", "data.max_validation_samples=64", "run.folder=run")
    train_recipe(load_recipe("grpo_smollm2", [f"model.path={real_model}", "seed=101", *short]))
    rows = read_metrics(in_tmp / "run")
    gaps = [row["agreement/max_abs_logprob_diff"] for row in rows if "train/reward" in row]
    assert gaps == [0.0] * 8
    before, after = (row for row in rows if "validation/accuracy" in row)
    assert after["validation/accuracy_low"] > before["validation/accuracy_high"]
