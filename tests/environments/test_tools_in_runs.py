"""Runs that learn to call tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from row_files import read_trained, write_rows
from tiny_recipe import GRPO, RECIPE
from tool_worlds import CALLS, QWEN, WORLDS
from training import train_rows

import lockstep
from lockstep.config import user_code
from lockstep.models.export import save_model
from lockstep.models.load import build_causal_lm
from lockstep.models.tokenizer import words_tokenizer


def unlearned(sample: dict[str, Any]) -> str:
    """The text of a response that the policy did not write."""
    token = sample["token"]
    return "".join(
        text for text, mask in zip(token["text"], token["mask"], strict=True) if not mask
    )


@pytest.fixture
def caller(in_tmp: Path) -> Path:
    """A tiny random model whose tokens are calls and words, with a chat template that writes
    tools.
    """
    (in_tmp / "worlds.py").write_text(WORLDS)
    (in_tmp / "rewards.py").write_text(
        "def sums(prompt, response, answer, row):\n    return float('\\n3\\n</tool_response>' in "
        "response)\n"
    )
    rows = [{"question": f"{a} plus 2", "answer": str(a + 2)} for a in range(1, 9)]
    write_rows(in_tmp / "rows.jsonl", rows)
    tokenizer = words_tokenizer(
        ["system user assistant add halve\n", *(row["question"] for row in rows)]
    )
    tokenizer.add_tokens([*CALLS, "<|im_start|>", "<tool_response>", "</tool_response>"])
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    tokenizer.chat_template = QWEN.replace("tool | tojson", "tool.function.name")
    config = RECIPE["model"]["scratch"]["config"] | {"max_position_embeddings": 256}
    save_model(build_causal_lm(config, tokenizer, 0), tokenizer, in_tmp / "caller")
    return in_tmp / "caller"


RUN = {name: value for name, value in GRPO.items() if name not in ("reward", "model", "data")} | {
    "model": {"path": "caller"},
    "data": {"train": "rows.jsonl", "validation": "rows.jsonl", "prompt": "{question}", "chat": True,
             "max_prompt_tokens": 64},
    "environment": {"class_name": "worlds.py:Sums", "tool_format": "hermes", "stop": CALLS, "max_turns": 2,
                    "max_tokens": 160},
    "reward": {"type": "python", "function": "rewards.py:sums", "marker": None},
    "sampling": {"max_tokens": 4},
    "validation_sampling": {"max_tokens": 3},
    "policy": {"lr": 0.01},
    "run": {"max_steps": 8, "folder": "run", "num_logged_samples": 64},
}  # fmt: skip


def test_policy_learns_tool_calls_and_python_trainer_gives_same_first_step(
    caller: Path, in_tmp: Path
) -> None:
    (in_tmp / "run.yaml").write_text(yaml.safe_dump(RUN))
    rows = [row for row in train_rows("run.yaml") if "train/turns" in row]
    assert (
        sum(row["train/reward"] for row in rows[-3:])
        > sum(row["train/reward"] for row in rows[:3]) + 1
    )
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-4 for row in rows)
    assert rows[0]["train/tool_calls"] > 0 < rows[0]["train/malformed_calls"] < 1
    samples = read_trained("run/samples.jsonl")
    assert all(
        sample["prompt"].startswith("<|im_start|>system\nadd\nhalve\n<|im_end|>\n")
        for sample in samples
    )
    results = {
        text
        for sample in samples
        for text in unlearned(sample).split("<|im_start|>")
        if "response" in text
    }
    assert any("<tool_response>\n3\n</tool_response><tool_response>\n" in text for text in results)

    loaded: Any = user_code.load_object("worlds.py:Sums", "environment.class_name", "class")
    # as in a notebook: only this process has it
    sums = type("Sums", (loaded,), {"__module__": "__main__"})
    options = {name: value for name, value in RUN.items() if name != "algorithm"}
    environment = RUN["environment"] | {"class_name": sums}
    run = lockstep.GRPO(
        **options | {"environment": environment, "run": {"max_steps": 1, "folder": "own"}}
    ).train()
    [same] = [row for row in run.metrics if "train/turns" in row]
    for name in ("train/tool_calls", "train/malformed_calls", "train/reward", "policy/loss"):
        assert same[name] == rows[0][name]
