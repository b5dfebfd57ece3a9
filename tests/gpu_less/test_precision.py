"""fp32 is fp32 on GPUs, too, even where a process had TF32 on before, and a run says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from gpus import show_gpus
from pretend_gpu import pretend_gpu
from tiny_recipe import GRPO, REWARDS

from lockstep.cli import main
from lockstep.config import Device
from lockstep.config.loading import load_recipe
from lockstep.core.errors import InputError
from lockstep.models.device import resolve_device
from lockstep.run.train import train_recipe

SENTENCE = "fp32 products: highest precision; TF32 is off"


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    """Something else in the process has turned it on."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def uses_tf32() -> bool:
    return bool(torch.backends.cuda.matmul.allow_tf32) or torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_process_that_computes_on_a_gpu_uses_no_tf32(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_gpus(monkeypatch, 1)
    assert uses_tf32()
    assert resolve_device(device).type == "cuda"
    assert not uses_tf32()


def test_tf32_override_environment_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, 1)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(
        InputError, match="NVIDIA_TF32_OVERRIDE=1 makes CUDA compute fp32 products in TF32"
    ):
        resolve_device("auto")
    assert resolve_device("cpu").type == "cpu"


def test_run_prints_and_records_fp32_precision(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rewards.py").write_text(REWARDS)
    Path("tiny.yaml").write_text(yaml.safe_dump(GRPO))
    with pretend_gpu():
        assert main(["train", "tiny.yaml", "learner.device=cuda", "--dry-run"]) == 0
        assert SENTENCE in capsys.readouterr().out
        folder = train_recipe(load_recipe("tiny.yaml", ["learner.device=cuda", "run.max_steps=1"]))
    assert SENTENCE in "".join(capsys.readouterr())
    assert not uses_tf32()
    assert json.loads((folder / "environment.json").read_text())["precision"] == SENTENCE
    assert json.loads((folder / "certificate.json").read_text())["machine"]["precision"] == SENTENCE
