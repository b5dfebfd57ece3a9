"""`lockstep doctor analyze`: a verdict on the two sides of a dump, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from row_files import write_rows
from torch import Tensor

from lockstep.cli import main
from lockstep.core import exit_codes
from lockstep_doctor.commands.dump import analyze_dump
from lockstep_doctor.dumps.names import FieldNames

SIDE = -torch.empty(48, 160, dtype=torch.float64).exponential_(
    0.7, generator=torch.Generator().manual_seed(0)
)
"""Log-probabilities, [B, T]."""


def write(
    path: Path, infer: Tensor, train: Tensor = SIDE, names: tuple[str, str] = ("train", "infer")
) -> Path:
    keys = [f"{name}_logprobs" for name in names]
    rows = [
        dict(zip(keys, sides, strict=True)) | {"prompt_length": 0}
        for sides in zip(train.tolist(), infer.tolist(), strict=True)
    ]
    return write_rows(path, rows)


def in_bf16(side: Tensor) -> Tensor:
    return side.bfloat16().double()


def shift(side: Tensor) -> Tensor:
    return side.roll(1, 1)


@pytest.mark.parametrize(
    ("change", "verdict", "kinds"),
    [(torch.clone, "PASS", []), (in_bf16, "PASS", ["grid"]), (shift, "FAIL", ["positions moved"])],
)
def test_analyze_passes_bf16_rounding_and_fails_shifted_positions(
    change: Callable[[Tensor], Tensor], verdict: str, kinds: list[str], tmp_path: Path
) -> None:
    found = analyze_dump(write(tmp_path / "dump.jsonl", change(SIDE)), FieldNames())
    assert (found.judgment.verdict, [one.kind for one in found.findings]) == (verdict, kinds)
    assert {one.side for one in found.findings} <= {"infer", None}


def test_analyze_counts_minus_infinity_as_support_violation_and_fails(tmp_path: Path) -> None:
    train = SIDE.clone()
    train[0, 1] = -math.inf
    found = analyze_dump(write(tmp_path / "d.jsonl", SIDE, train), FieldNames())
    assert found.figures["support_violations_train"] == 1
    assert found.judgment.verdict == "FAIL"


def test_analyze_reports_named_columns_and_rejects_dump_with_one_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "dump.jsonl", shift(SIDE), names=("own", "other")))
    named = ["doctor", "analyze", path, "--columns"]
    assert main([*named, "train=own_logprobs", "infer=other_logprobs"]) == exit_codes.BROKEN
    said = capsys.readouterr().out
    assert said.startswith(
        "# dump.jsonl: FAIL\n\n7,680 tokens of 48 sequences; Δ is `own_logprobs` − `other_logprobs`"
    )
    assert "**positions moved**: inference's values are training's -1 position from them" in said
    assert main([*named, "infer=other_logprobs"]) == exit_codes.INPUT
    assert (
        "analyze needs two sides, but the dump has only other_logprobs; name"
        in capsys.readouterr().err
    )
    assert main([*named, "train"]) == exit_codes.INPUT
    assert (
        "--columns train is not ROLE=NAME; valid roles: train, infer, ids"
        in capsys.readouterr().err
    )
