"""`lockstep doctor locate` with a dump: what it says, how it ends, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lockstep import exit_codes
from lockstep.cli import main

ROWS, LENGTH, PROMPT = 8, 24, 4
FIELDS = ("ids", "mask", "train_logprobs", "infer_logprobs")


@pytest.fixture
def model(models: Callable[..., Path]) -> Path:
    return models("llama")


@torch.no_grad()
def score(model: Path, ids: Tensor) -> Tensor:
    """Log-probabilities of ids by `transformers`, [B, T]; 0 for the first."""
    logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()(ids).logits
    own = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return torch.cat([own.new_zeros(len(ids), 1), own], 1)


def write_dump(path: Path, model: Path) -> Path:
    """The inference side has every row's values in the next row."""
    ids = torch.randint(1, 60, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    train = score(model, ids)
    mask = [[0] * PROMPT + [1] * (LENGTH - PROMPT)] * ROWS
    rows = zip(ids.tolist(), mask, train.tolist(), train.roll(1, 0).tolist(), strict=True)
    path.write_text("".join(json.dumps(dict(zip(FIELDS, row, strict=True))) + "\n" for row in rows))
    return path


def test_a_dump_whose_rows_are_permuted_beside_the_run_that_trained_its_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, run = write_dump(tmp_path / "d.jsonl", model), tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").touch()
    (run / "final").symlink_to(model)
    assert main(["doctor", "locate", str(dump), "--model", str(run)]) == exit_codes.BROKEN
    said = capsys.readouterr()
    assert said.out.endswith("\nwrong: infer\n")
    assert "rows moved: 8 of 8 rows have another row's values" in said.out
    assert "it leaves the model at the column" in said.out
    assert f"load {run / 'final'}\n" in said.err


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (["--model", "m", "backends=[hf,torch]"], "locate with --model does not read key=value"),
        (["--model", "m", "--out", "o"], "locate with --model does not read --out"),
        (["--model", "m", "--recipe", "doctor_quick"], "locate with --model does not read --recipe"),
        (["--columns", "mask=p"], "locate with a model does not read --columns"),
    ],
)
def test_what_would_not_be_read_is_refused(said: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "locate", "d", *said])
    assert end.value.code == exit_codes.INPUT
    assert sentence in capsys.readouterr().err
