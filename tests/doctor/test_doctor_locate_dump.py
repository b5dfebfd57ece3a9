"""`lockstep doctor locate` with a dump and with a server: what it says, how it ends, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_tables import SMALL
from scoring_server import Reply, serving
from torch import Tensor
from transformers import AutoModelForCausalLM

from lockstep import exit_codes
from lockstep.cli import main

ROWS, LENGTH, PROMPT = 8, 24, 4
FIELDS = ("ids", "mask", "train_logprobs", "infer_logprobs")


@pytest.fixture
def model(models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("no_proxy", "*")
    return models("llama")


@torch.no_grad()
def score(model: Path, ids: Tensor) -> Tensor:
    """Log-probabilities of ids by `transformers`, [B, T]; 0 for the first."""
    logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()(ids).logits
    own = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return torch.cat([own.new_zeros(len(ids), 1), own], 1)


def write_dump(path: Path, model: Path, infer: Callable[[Tensor], Tensor], fields: tuple[str, ...] = FIELDS) -> Path:
    ids = torch.randint(1, 60, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    train = score(model, ids)
    mask = [[0] * PROMPT + [1] * (LENGTH - PROMPT)] * ROWS
    rows = zip(ids.tolist(), mask, train.tolist(), infer(train).tolist(), strict=True)
    path.write_text("".join(json.dumps(dict(zip(fields, row, strict=True))) + "\n" for row in rows))
    return path


def permute(column: Tensor) -> Tensor:
    return column.roll(1, 0)


def test_a_dump_whose_rows_are_permuted(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = write_dump(tmp_path / "d.jsonl", model, permute)
    assert main(["doctor", "locate", str(dump), "--model", str(model)]) == exit_codes.BROKEN
    said = capsys.readouterr()
    assert said.out.endswith("\nwrong: infer\n")
    assert "rows moved: 8 of 8 rows have another row's values" in said.out
    assert "it leaves the model at the column" in said.out
    assert f"load {model}\n" in said.err


def test_a_dump_that_agrees(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = write_dump(tmp_path / "d.jsonl", model, torch.clone)
    assert main(["doctor", "locate", str(dump), "--model", str(model)]) == exit_codes.OK
    assert capsys.readouterr().out.endswith("\nneither side leaves the model\n")


def test_the_model_may_be_a_finished_run(model: Path, tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "d.jsonl", model, permute)
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").touch()
    (run / "final").symlink_to(model)
    assert main(["doctor", "locate", str(dump), "--model", str(run)]) == exit_codes.BROKEN


def test_columns_by_names_of_their_own(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = write_dump(tmp_path / "d.jsonl", model, permute, ("ids", "mask", "a", "b"))
    ask = ["doctor", "locate", str(dump), "--model", str(model)]
    assert main(ask) == exit_codes.INPUT
    assert "--train-column" in capsys.readouterr().err
    assert main([*ask, "--train-column", "a", "--infer-column", "b"]) == exit_codes.BROKEN
    assert "infer (b) is" in capsys.readouterr().out


def speak(model: Path, change: Callable[[Tensor], Tensor]) -> Reply:
    """As SGLang does, with a column that is changed."""

    def reply(path: str, body: dict[str, Any]) -> Any:
        if path != "/generate":
            return 404
        (column,) = change(score(model, torch.tensor([body["input_ids"]])))
        said = [[one, token, None] for one, token in zip(column.tolist(), body["input_ids"], strict=True)]
        return {"meta_info": {"input_token_logprobs": said}}

    return reply


def shift(column: Tensor) -> Tensor:
    return column.roll(-1, 1)


@pytest.mark.parametrize(("change", "code"), [(torch.clone, exit_codes.OK), (shift, exit_codes.BROKEN)])
def test_a_server(
    model: Path, change: Callable[[Tensor], Tensor], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(speak(model, change)) as url:
        assert main(["doctor", "locate", str(model), *SMALL, "--url", url]) == code
    said = capsys.readouterr()
    assert f"infer ({url}) is" in said.out
    assert ("positions moved" in said.out) == (code == exit_codes.BROKEN)
    assert "ask the server about 8 requests" in said.err


def test_a_server_that_nobody_runs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "locate", str(model), *SMALL, "--url", "http://127.0.0.1:9"]) == exit_codes.INPUT
    assert capsys.readouterr().err.endswith(
        "lockstep: http://127.0.0.1:9: cannot be reached: [Errno 111] Connection refused\n"
    )


def test_a_server_with_a_key_and_several_models(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "s3cret")
    seen: list[Any] = []

    def reply(path: str, body: dict[str, Any]) -> Any:
        """As vLLM does, for one of its models."""
        if path != "/v1/completions" or body["model"] != "the-second":
            return 404
        (column,) = score(model, torch.tensor([body["prompt"]]))
        said = [{str(token): {"logprob": one}} for token, one in zip(body["prompt"], column.tolist(), strict=True)]
        return {"choices": [{"prompt_logprobs": [None, *said[1:]]}]}

    with serving(reply, seen) as url:
        named = ["--url", url, "--key-env", "SERVER_KEY", "--served-model", "the-second"]
        assert main(["doctor", "locate", str(model), *SMALL, *named]) == exit_codes.OK
    assert set(seen) == {("/v1/completions", "Bearer s3cret")}
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err


def test_a_key_that_is_not_set(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--url", "http://127.0.0.1:9", "--key-env", "NO_SUCH_KEY"]
    assert main(["doctor", "locate", str(model), *SMALL, *named]) == exit_codes.INPUT
    assert "the environment variable NO_SUCH_KEY is not set" in capsys.readouterr().err


def test_a_dump_without_its_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "d.jsonl"
    dump.touch()
    assert main(["doctor", "locate", str(dump)]) == exit_codes.INPUT
    assert f"of a dump say lockstep doctor locate {dump} --model FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (["--model", "m", "backends=[hf,torch]"], "locate with --model does not read key=value"),
        (["--model", "m", "--out", "o"], "locate with --model does not read --out"),
        (["--model", "m", "--recipe", "doctor_quick"], "locate with --model does not read --recipe"),
        (["--url", "http://h", "--out", "o"], "locate with --url does not read --out"),
        (["--url", "http://h", "--top-p-column", "p"], "locate with --url does not read --top-p-column"),
        (["--served-model", "m"], "locate with a model does not read --served-model"),
        (["--model", "m", "--key-env", "K"], "locate with --model does not read --key-env"),
        (["--mask-column", "p"], "locate with a model does not read --mask-column"),
        (["--url", "http://h", "--model", "m"], "argument --model: not allowed with argument --url"),
    ],
)
def test_what_would_not_be_read_is_refused(said: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "locate", "d", *said])
    assert end.value.code == exit_codes.INPUT
    assert sentence in capsys.readouterr().err
