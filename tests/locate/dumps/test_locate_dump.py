"""Dumps of a small model with one fault on one side: the side and the stage are said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from row_files import write_rows
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lockstep.cli import main
from lockstep.core import exit_codes
from lockstep_doctor.dumps import judge
from lockstep_doctor.dumps.judge import describe_dump, locate_dump
from lockstep_doctor.dumps.names import DumpError
from lockstep_doctor.dumps.read import read_dump
from lockstep_doctor.hf import load_model

ROWS, LENGTH, PROMPT = 16, 48, 6
SIDES = ("prev_logprobs", "generation_logprobs")


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    }
    config = LlamaConfig(
        **sizes, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, bos_token_id=1
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.15 * torch.randn_like(parameter) + float(parameter.ndim == 1))
        model.lm_head.weight *= 4
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build().save_pretrained(path)
    return path


@torch.no_grad()
def sample(temperature: float = 1.0) -> Tensor:
    """Ids of every row, [B, T], which the model generated behind a prompt."""
    model, generator = build(), torch.Generator().manual_seed(1)
    ids = torch.randint(2, 97, (ROWS, PROMPT), generator=generator)
    ids[:, 0] = 1
    while ids.shape[1] < LENGTH:
        chances = (model(ids).logits[:, -1] / temperature).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)], 1)
    return ids


IDS = sample()
Fault = Callable[[Tensor], Tensor]
"""From ids to one side's column, [B, T]."""


@torch.no_grad()
def score(
    ids: Tensor, temperature: float = 1.0, change: Callable[[Any], None] = lambda model: None
) -> Tensor:
    model = build()
    change(model)
    own = (
        (model(ids).logits[:, :-1].float() / temperature)
        .log_softmax(-1)
        .gather(-1, ids[:, 1:, None])[..., 0]
    )
    return torch.cat([torch.zeros(len(ids), 1), own], 1)


def write(
    path: Path, train: Tensor, infer: Tensor, ids: Tensor = IDS, temperature: float | None = None
) -> Path:
    """As NeMo RL logs."""
    told = {} if temperature is None else {"temperature": temperature}
    mask = [[[0] * PROMPT + [1] * (LENGTH - PROMPT)]] * len(ids)
    rows = zip(ids.tolist(), mask, train.tolist(), infer.tolist(), strict=True)
    write_rows(
        path,
        (
            {
                "token_ids": [a],
                "token_loss_mask": b,
                "prev_logprobs": [c],
                "generation_logprobs": [d],
                **told,
            }
            for a, b, c, d in rows
        ),
    )
    return path


def rolled(ids: Tensor) -> Tensor:
    return score(ids).roll(-1, 1)


def permuted(ids: Tensor) -> Tensor:
    return score(ids).roll(1, 0)


def last_zero(ids: Tensor) -> Tensor:
    column = score(ids)
    column[:, -1] = 0.0
    return column


def in_bfloat16(ids: Tensor) -> Tensor:
    return score(ids).bfloat16().float()


def cold(ids: Tensor) -> Tensor:
    return score(ids, 0.7)


def odd_temperature(ids: Tensor) -> Tensor:
    return score(ids, 0.72)


def without_bos(ids: Tensor) -> Tensor:
    return torch.cat([torch.zeros(len(ids), 1), score(ids[:, 1:])], 1)


def halved(ids: Tensor) -> Tensor:
    return 0.5 * score(ids)


def scaled_attention(ids: Tensor) -> Tensor:
    def scale(model: Any) -> None:
        for layer in model.model.layers:
            layer.self_attn.scaling *= 0.5

    return score(ids, change=scale)


@pytest.mark.parametrize(
    ("fault", "side", "stage", "change"),
    [
        (rolled, 0, "column", ""),
        (permuted, 1, "column", ""),
        (last_zero, 1, "column", ""),
        (in_bfloat16, 1, "log-probabilities", ""),
        (halved, 0, "log-probabilities", ""),
        (cold, 0, "temperature", "at temperature 0.7"),
        (cold, 1, "temperature", "at temperature 0.7"),
        (odd_temperature, 1, "temperature", "at temperature 0.7"),
        (without_bos, 1, "ids", "without the first id"),
        (scaled_attention, 0, "model", ""),
        (scaled_attention, 1, "model", ""),
    ],
)
def test_fault_in_dump_is_located_by_side_and_stage(
    fault: Fault, side: int, stage: str, change: str, folder: Path, tmp_path: Path
) -> None:
    columns = [score(IDS), score(IDS)]
    columns[side] = fault(IDS)
    found = locate_dump(write(tmp_path / "d.jsonl", columns[0], columns[1]), folder)
    assert [one.name for one in found.wrong_sides] == [SIDES[side]]
    assert (found.wrong_sides[0].stage, found.wrong_sides[0].change[: len(change)]) == (
        stage,
        change,
    )
    right = found.sides[1 - side]
    assert right.rms < 1e-4
    assert (right.stage, right.findings) == (None, [])


def rounded(ids: Tensor) -> Tensor:
    """A healthy engine in bf16."""
    return score(ids, change=lambda model: model.to(torch.bfloat16))


def four_digits(ids: Tensor) -> Tensor:
    """A column as a dump may write it."""
    return (rounded(ids) * 1e4).round() / 1e4


@pytest.mark.parametrize(
    ("train", "infer", "temperature"),
    [
        (score, score, None),
        (score, rounded, None),
        (rounded, rounded, None),
        (score, four_digits, None),
        (cold, cold, None),
        (cold, cold, 0.7),
        (score, score, 0.7),
    ],
)
def test_healthy_dump_sides_agree_with_model(
    train: Fault, infer: Fault, temperature: float | None, folder: Path, tmp_path: Path
) -> None:
    found = locate_dump(
        write(tmp_path / "d.jsonl", train(IDS), infer(IDS), temperature=temperature), folder
    )
    assert found.wrong_sides == []
    assert list(describe_dump(found))[-1] == "both sides agree with the model"


def test_dump_temperature_decides_which_side_is_wrong(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", cold(IDS), score(IDS), temperature=0.7)
    found = locate_dump(path, folder)
    assert [(one.side, one.stage, one.change) for one in found.wrong_sides] == [
        ("infer", "temperature", "")
    ]
    assert found.sides[0].change == "at the dump's temperature"


def test_dump_report_states_compared_rows_and_wrong_side(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "_MOST_IDS", 10 * LENGTH)
    found = locate_dump(write(tmp_path / "d.jsonl", score(IDS), permuted(IDS)), folder)
    said = list(describe_dump(found))
    assert said[0] == f"420 generated tokens of 10 of 16 rows, compared with {folder} in float32"
    assert said[-1] == "wrong: infer"
    assert any(
        line.startswith("infer (generation_logprobs) differs from the model by 1.")
        and ("it deviates at the column") in line
        for line in said
    )
    assert any("rows have another row's values" in line for line in said)
    assert not any("training" in line for line in said)


def test_dump_with_one_side_is_judged_against_model(folder: Path, tmp_path: Path) -> None:
    columns = read_dump(write(tmp_path / "d.jsonl", score(IDS), permuted(IDS)))
    alone = replace(
        columns,
        train=None,
        columns=replace(columns.columns, train=torch.full_like(columns.columns.train, torch.nan)),
    )
    found = locate_dump(alone, folder)
    assert (found.gap, [one.side for one in found.wrong_sides]) == (None, ["infer"])


@pytest.mark.parametrize("broken", [torch.float32, torch.bfloat16])
def test_dump_is_not_judged_by_model_that_returns_nan(
    broken: torch.dtype, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_broken(path: Path, dtype: torch.dtype, device: str) -> Any:
        model = load_model(path, dtype, device)
        if dtype == broken:
            model.lm_head.weight.data.fill_(torch.nan)
        return model

    monkeypatch.setattr(judge, "load_model", load_broken)
    with pytest.raises(
        DumpError,
        match=f"in {broken}".replace("torch.", "") + " returns NaN log-probabilities",
    ):
        locate_dump(write(tmp_path / "d.jsonl", score(IDS), score(IDS)), folder)


def test_unusable_model_or_dump_is_rejected_with_reason(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", score(IDS), score(IDS))
    with pytest.raises(DumpError, match=r"missing config\.json"):
        locate_dump(path, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "unheard"}')
    with pytest.raises(DumpError, match="transformers cannot load it: "):
        locate_dump(path, tmp_path)
    other = write(tmp_path / "other.jsonl", score(IDS), score(IDS), IDS + 1)
    with pytest.raises(DumpError, match="the model has 97 token ids, but the dump has id 97"):
        locate_dump(other, folder)
    bare = tmp_path / "bare.jsonl"
    bare.write_text(
        json.dumps({"prev_logprobs": [-1.0], "generation_logprobs": [-1.0], "mask": [1]})
    )
    with pytest.raises(DumpError, match="the dump has no token ids"):
        locate_dump(bare, folder)


def test_missing_dump_temperature_is_noted_only_if_a_side_is_wrong(
    folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "d.jsonl", cold(IDS), score(IDS))
    said = list(describe_dump(locate_dump(path, folder)))
    assert said[-2] == "wrong: train"
    assert said[-1].startswith("the dump has no temperature, so 1 is assumed; if it was sampled at")
    told = write(tmp_path / "e.jsonl", cold(IDS), score(IDS), temperature=0.7)
    assert not locate_dump(told, folder).doubt
    assert not locate_dump(write(tmp_path / "f.jsonl", score(IDS), score(IDS)), folder).doubt


def test_shifted_column_is_located_at_dump_temperature(folder: Path, tmp_path: Path) -> None:
    right = cold(IDS)
    path = write(tmp_path / "d.jsonl", right, right.roll(1, -1), temperature=0.7)
    [wrong] = locate_dump(path, folder).wrong_sides
    assert (wrong.side, wrong.stage) == ("infer", "column")


def test_renormalized_logprobs_are_located_at_logprob_stage(folder: Path, tmp_path: Path) -> None:
    plain = score(IDS)
    draw = torch.rand(plain.shape, generator=torch.Generator().manual_seed(0), dtype=plain.dtype)
    renormalized = (plain + 0.2231 * draw).clamp(max=0.0)  # up to −log 0.8 more
    [wrong] = locate_dump(write(tmp_path / "d.jsonl", plain, renormalized), folder).wrong_sides
    assert (wrong.side, wrong.stage) == ("infer", "log-probabilities")


def test_locate_command_uses_final_model_of_run_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, run = write(tmp_path / "d.jsonl", score(IDS), permuted(IDS)), tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").touch()
    (run / "final").symlink_to(folder)
    assert main(["doctor", "locate", str(dump), "--model", str(run)]) == exit_codes.BROKEN
    said = capsys.readouterr()
    assert said.out.endswith("\nwrong: infer\n")
    assert f"load {run / 'final'}\n" in said.err


def test_healthy_dump_of_few_tokens_is_inconclusive(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write(tmp_path / "d.jsonl", score(IDS), score(IDS))
    dump.write_text(dump.read_text().splitlines(keepends=True)[0])
    code = main(["doctor", "locate", str(dump), "--model", str(folder)])
    assert code == exit_codes.INCONCLUSIVE
    assert capsys.readouterr().out.endswith("\ninconclusive: fewer than 64 tokens; dump more\n")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (["--model", "m", "backends=[hf,torch]"], "locate with --model does not use key=value"),
        (["--model", "m", "--out", "o"], "locate with --model does not use --out"),
        (["--columns", "mask=p"], "locate with a model does not use --columns"),
    ],
)
def test_locate_of_dump_rejects_options_it_does_not_use(
    said: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "locate", "d", *said])
    assert end.value.code == exit_codes.INPUT
    assert sentence in capsys.readouterr().err
