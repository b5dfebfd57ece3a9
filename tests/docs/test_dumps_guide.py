"""What the guide of dumps shows is Python that runs, on objects in the shape of the libraries it
names.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep.core import exit_codes
from lockstep_doctor.dumps.read import read_dump

GUIDE = (Path(__file__).parents[2] / "docs/guides/dumps.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
DUMP, VERL, TRL, OWN = BLOCKS
IDS = torch.tensor([1, 5, 6, 7, 8, 9])


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
    }
    model = LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + float(parameter.ndim == 1))
    return model


@torch.no_grad()
def score() -> list[float]:
    own = build()(IDS[None]).logits[0, :-1].log_softmax(-1).gather(-1, IDS[1:, None])[:, 0]
    return [0.0, *own.tolist()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    build().save_pretrained("my_model")
    return tmp_path


def test_dumps_guide_code_compares_dump_with_its_model(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = [*score()[1:], -1.0]
    row = {
        "token_ids": [IDS.tolist()],
        "token_loss_mask": [[0, 0, 1, 1, 1, 1]],
        "input_lengths": [6],
    }
    row |= {"prev_logprobs": [score()], "generation_logprobs": [moved], "idx": 0}
    Path("train_data_step3.jsonl").write_text(json.dumps(row) + "\n")
    exec(DUMP, {})
    said = capsys.readouterr().out
    assert said.startswith("4 generated tokens of 1 rows, compared with my_model in float32\n")
    assert "train (prev_logprobs) differs from the model by 0: rounding explains it" in said


PADDED = torch.tensor([[0, 1, 5, 6, 7, 0], [1, 5, 6, 7, 8, 9]])
LEFT = torch.tensor([[0, 1], [1, 1]])
RIGHT = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
COLUMN = -torch.arange(8.0).reshape(2, 4)


def test_dumps_guide_verl_exporter_writes_readable_dump(here: Path) -> None:
    class RayPPOTrainer:
        global_steps = 3

        def _log_rollout_data(
            self, batch: Any, reward: dict[str, Any], timing: dict[str, Any], folder: str
        ) -> None:
            pass

    names: dict[str, Any] = {"RayPPOTrainer": RayPPOTrainer, "torch": torch}
    exec(VERL, names)
    tensors = {
        "input_ids": PADDED,
        "attention_mask": torch.cat([LEFT, RIGHT], 1),
        "response_mask": RIGHT,
        "old_log_probs": COLUMN,
        "rollout_log_probs": COLUMN,
        "advantages": COLUMN,
    }
    batch = SimpleNamespace(batch=tensors, meta_info={"temperature": 0.7})
    names["ExportingTrainer"]()._log_rollout_data(batch, {}, {}, "folder")
    check(here / "verl_3.pt", {"temperature": [0.7, 0.7]})


def test_dumps_guide_trl_exporter_writes_readable_dump(here: Path) -> None:
    class GRPOTrainer:
        state, temperature = SimpleNamespace(global_step=3), 0.7

        def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
            return {
                "prompt_ids": PADDED[:, :2],
                "prompt_mask": LEFT,
                "completion_ids": PADDED[:, 2:],
                "completion_mask": RIGHT,
                "advantages": torch.zeros(2),
                "num_items_in_batch": torch.tensor(7),
                "old_per_token_logps": COLUMN,
                "sampling_per_token_logps": COLUMN,
                "num_images": None,
            }

    names: dict[str, Any] = {"GRPOTrainer": GRPOTrainer, "torch": torch}
    exec(TRL, names)
    assert names["ExportingGRPOTrainer"]()._generate_and_score_completions([])["num_images"] is None
    check(here / "trl_3.pt", {"temperature": [0.7, 0.7]})


def check(path: Path, facts: dict[str, list[float]]) -> None:
    columns = read_dump(path).columns
    assert columns.ids is not None
    assert columns.ids.tolist() == [1, 5, 6, 7, 1, 5, 6, 7, 8, 9]
    assert columns.train[columns.mask].tolist() == [0, -1, -2, -4, -5, -6, -7]
    assert {name: value.tolist() for name, value in columns.facts.items()} == facts


def test_doctor_module_compares_the_dump_of_a_custom_loop_with_its_model(here: Path) -> None:
    columns = [score()]
    exec(
        OWN,
        {
            "batch_ids": [IDS.tolist()],
            "batch_masks": [[0, 0, 1, 1, 1, 1]],
            "trainer_columns": columns,
            "sampler_columns": columns,
        },
    )
    read = read_dump(here / "mine.jsonl").columns
    assert read.train[read.mask].tolist() == score()[2:]
    command = [sys.executable, "-m", "lockstep_doctor", "locate", "mine.jsonl"]
    done = subprocess.run([*command, "--model", "my_model"], capture_output=True, text=True)
    assert done.returncode == exit_codes.INCONCLUSIVE  # of four tokens
    assert "compared with my_model in float32" in done.stdout
